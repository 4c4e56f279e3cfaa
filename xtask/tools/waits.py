"""Waits in two functions."""
import sys


def inner():
    return sys.stdin.readline()


def outer():
    return inner()


print("ready", flush=True)
while outer():
    pass
