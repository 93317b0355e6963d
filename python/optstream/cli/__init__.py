"""The command line: files in, private files out. Everything that it does is a call of the library."""
