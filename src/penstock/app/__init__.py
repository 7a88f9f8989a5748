"""Declare and run an app: handlers, pipelines, services, background jobs.

The only package in which the others are wired together. A worker imports nothing above it.
"""
