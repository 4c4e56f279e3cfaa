"""python3 huge.py: the interpreter's own text, and that of the libraries that are loaded by now."""
import ctypes
import sys


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("settings", ctypes.c_char_p)]


class Result(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("text_bytes", ctypes.c_uint64),
        ("huge_bytes", ctypes.c_uint64),
        ("copied_bytes", ctypes.c_uint64),
        ("reason", ctypes.c_char * 32),
        ("detail", ctypes.c_char * 472),
    ]


tiexec = ctypes.CDLL("libtiexec.so.1")
options = Options(ctypes.sizeof(Options), b"edges=aggressive")
result = Result(ctypes.sizeof(Result))
# The program goes on in any case.
if tiexec.tiexec_self(ctypes.byref(options), ctypes.byref(result)):
    print("text stays on base pages:", result.reason.decode(), result.detail.decode(), file=sys.stderr)
print(f"{result.huge_bytes >> 10} of {result.text_bytes >> 10} KiB of text are on huge pages")
