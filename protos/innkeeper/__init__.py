"""Generated messages and stubs of the Innkeeper protocol."""
