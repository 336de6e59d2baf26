"""A module that starts a thread when it is imported, which no fork of its process would have."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
