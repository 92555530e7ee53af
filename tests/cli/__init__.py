"""The command line, with real node processes where it starts any."""
