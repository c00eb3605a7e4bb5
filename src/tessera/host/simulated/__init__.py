"""GPUs that exist only in a file: for development, demonstrations and tests."""
