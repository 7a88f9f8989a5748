"""Migrations, one module per revision."""
