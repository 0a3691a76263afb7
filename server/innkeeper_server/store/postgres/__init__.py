"""The store for production: a PostgreSQL database, which several hosts may share.

Owns the subpackage; import from its modules.
"""
