"""What `import torch` calls of the packages that have an entry point in the group torch.backends.

An exception here would break `import torch` for every program of the environment. So this module imports nothing
by itself, and says nothing: a program that asks for the backend "stormo" learns from `import stormo_torch` what
is wrong.
"""


def register():
    try:
        import stormo_torch  # noqa: F401  (registers the backend)
    except Exception:
        pass
