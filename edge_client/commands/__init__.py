"""The subcommands of ``draftwire``, one a file."""
