"""Version 1 of the protocol; the .proto files beside it are its reference."""
