"""Files that a person hands to a command, read within limits: memory and time are bounded, however a file was made.

`reader` reads bytes, `documents` JSON and YAML. Knows nothing of what the files mean.
"""
