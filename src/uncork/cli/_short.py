"""The short option `-o`, for the parameter of a command that names the file to write."""

try:
    from tyro.conf import arg

    SHORT_O = arg(aliases=("-o",))
except ImportError:  # `uncork.cli.main` then says what to install
    SHORT_O = None
