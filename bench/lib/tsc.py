"""TypeScript's compiler, in a place of its own below the workloads' data."""

from lib import session, workload

VERSIONS = {"typescript": "5.9", "typescript7": "7.0"}  # the first is a program for Node.js, the second is native


def place(directory, name):
    return directory / name


def installer(name):
    def install(directory):
        place(directory, name).mkdir(parents=True, exist_ok=True)
        workload.output([workload.need("npm", "npm"), "install", "--no-fund", "--no-audit", "--prefix", place(directory, name),
                         f"typescript@{VERSIONS[name]}"])

    return install


def file(directory, name, inside):
    """A file of the compiler."""
    found = next(place(directory, name).glob(f"node_modules/{inside}"), None)
    return str(found) if found else session.unable(f"no TypeScript; fix: {session.NAME} --install")
