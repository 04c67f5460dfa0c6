"""The sandbox supervisor: one small process that starts sandboxes and enters them, so that nobody else has to fork.

It is started by `agentrl.sandbox.bubblewrap`, speaks frames over one socket, and ends when its owner does. It imports
the standard library only, and little of that: each command costs two forks of this process, and a fork costs what it
maps.
"""
