"""Local training in a child process: a crash or out-of-memory there is an error of one task, not the end of the job.

``protocol.py`` what the two processes say, ``child.py`` the process that trains, ``process.py`` its parent's handle,
``site_state.py`` the private state that stays at the site. Nothing here imports FLARE.
"""
