"""Declare and run an app: handlers, pipelines, services, background jobs.

The only package that connects the others to each other. A worker imports no package above it.
"""
