"""The dashboard: pages about queues, dead letters, objects and workers for people, as one ASGI application.

`penstock web` and `penstock worker --web` serve it, and `dashboard` returns it for mounting in a Starlette or FastAPI
app. It uses the same health model, queries and actions as the commands.
"""

from penstock.web.dashboard import dashboard
from penstock.web.security import WebUser

__all__ = ["WebUser", "dashboard"]
