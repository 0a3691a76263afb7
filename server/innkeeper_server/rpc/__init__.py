"""The services: translation between messages and the host's calls. Decides nothing."""
