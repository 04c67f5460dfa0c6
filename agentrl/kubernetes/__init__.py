"""The Kubernetes API as the rest needs it; the only package that imports `kubernetes`, and only where it connects.

Objects are plain dicts, as the API serves them: a model that is strict about what it reads would let one odd object of
somebody else break a list. `connection` finds cluster and credentials, `client` asks, `errors` says what an answer
means, `watch` keeps a copy of what is there, `exec` runs a command in a pod, `names` names and labels what is ours.
"""
