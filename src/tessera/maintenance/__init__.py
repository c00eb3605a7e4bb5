"""Takes cards out of use and back: what operators change, where `inspect` only reads."""
