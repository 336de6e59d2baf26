"""A module that starts a thread at import. A fork of the process would lack that thread."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
