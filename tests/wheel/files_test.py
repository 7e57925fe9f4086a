#!/usr/bin/env python3
"""What is in the wheels of tools/wheel and in the source package, and what must not be.

Usage: files_test.py FOLDER CHECKOUT TOOLS TORCH [TEST ...]    the folders of the wheels, of auditwheel, of a torch
"""

import email
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import unittest
import zipfile

FOLDER, CHECKOUT, TOOLS, TORCH = (pathlib.Path(word).resolve() for word in sys.argv[1:5])
# Library of the system, and the package whose licence must be there.
LICENCES = {
    "libcrypto": "libssl-dev", "libssl": "libssl-dev", "libfmt": "libfmt-dev", "libxxhash": "libxxhash-dev",
    "libpng": "libpng-dev", "libtomlplusplus": "libtomlplusplus-dev", "libturbojpeg": "libturbojpeg0-dev",
    "libz": "zlib1g-dev",
}


def output(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def symbols(path, which):
    """Names that a file gives to others, or takes from them, without their versions."""
    return {line.split()[-1].split("@")[0] for line in output("nm", "-D", which, path).splitlines()}


class Wheel:
    """The tests of any wheel; in a class of its own, so that they run in those below alone."""

    class Tests(unittest.TestCase):
        name = ""
        brings = set()  # libraries of the system

        @classmethod
        def setUpClass(cls):
            [cls.wheel] = FOLDER.glob(f"{cls.name}-*.whl")
            temporary = tempfile.TemporaryDirectory()
            cls.addClassCleanup(temporary.cleanup)
            cls.tree = pathlib.Path(temporary.name)
            with zipfile.ZipFile(cls.wheel) as wheel:
                wheel.extractall(cls.tree)
            cls.files = [path for path in cls.tree.rglob("*") if path.is_file()]
            cls.programs = [path for path in cls.files if path.read_bytes()[:4] == b"\x7fELF"]
            [information] = cls.tree.glob("*.dist-info")
            cls.metadata = email.message_from_string((information / "METADATA").read_text())
            cls.licences = {path.name for path in information.rglob("licenses/*")}

        def test_glibc_of_debian_12_is_enough(self):
            self.assertRegex(self.wheel.name, r"-manylinux_2_36_x86_64\.whl$|-manylinux_2_3[0-6]_x86_64\.")
            newest = max(
                tuple(int(part) for part in version.split("."))
                for path in self.programs
                for version in re.findall(r"GLIBC_([0-9.]+)", output("readelf", "-VW", path))
            )
            self.assertLessEqual(newest, (2, 36))

        def test_nothing_knows_where_it_was_built(self):
            for path in self.files:
                self.assertNotIn(str(CHECKOUT).encode(), path.read_bytes(), path)

        def test_libraries_are_searched_beside_the_file_alone(self):
            for path in self.programs:
                for search in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", output("readelf", "-dW", path)):
                    self.assertRegex(search, r"^\$ORIGIN(/|$)[^:]*$", path)

        def libraries(self):
            return {found[0]: path for path in self.programs if (found := re.match(r"lib[a-z]+", path.name))}

        def test_libraries_of_the_system(self):
            self.assertEqual(set(self.libraries()), self.brings)
            self.assertIn("LICENSE", self.licences)
            for library in self.brings:
                self.assertIn(LICENCES[library] + ".txt", self.licences)

        def test_each_library_is_used_by_whoever_needs_it(self):
            brought = {path.name: symbols(path, "--defined-only") for path in self.libraries().values()}
            needed = set()
            for path in self.programs:
                used = symbols(path, "--undefined-only")
                for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", path)):
                    if name in brought:
                        needed.add(name)
                        self.assertTrue(used & brought[name], f"{path.name} uses nothing of {name}")
            self.assertEqual(needed, set(brought))


class Package(Wheel.Tests):
    name = "stormo_torch"
    brings = {"libfmt", "libxxhash"}

    def extensions(self):
        return [path for path in self.programs if path.parent.name == "stormo_torch"]

    def test_auditwheel(self):
        said = " ".join(output(TOOLS / "auditwheel", "show", self.wheel).split())
        # it takes torch's libraries for the system's, which nobody has; what else there is sets the tag
        self.assertRegex(said, r'This constrains the platform tag to "manylinux_2_3[0-6]_')

    def test_torch_and_python_are_not_brought(self):
        self.assertFalse([path for path in self.programs if re.match(r"lib(torch|c10|python|gomp)", path.name)])

    def test_an_extension_exports_nothing_but_its_module(self):
        self.assertTrue(self.extensions())
        for path in self.extensions():
            names = [line.split()[-1] for line in output("nm", "-D", "--defined-only", path).splitlines()]
            self.assertEqual([name for name in names if "tormo" in name], [], path)
            self.assertIn("PyInit__c10d", names)

    def test_openssl_is_part_of_an_extension(self):
        for path in self.extensions():
            self.assertNotRegex(output("readelf", "-dW", path), r"NEEDED.*lib(ssl|crypto)", path)
        self.assertIn("libssl-dev.txt", self.licences)

    def test_an_extension_lacks_nothing_of_stormo(self):
        for path in self.extensions():  # the linker leaves to the loader what it does not find
            missing = [line for line in output("nm", "-D", "--undefined-only", path).splitlines() if "tormo" in line]
            self.assertEqual(missing, [], path)

    def test_pip_allows_the_torches_that_there_is_an_extension_for(self):
        [needs] = self.metadata.get_all("Requires-Dist")
        minors = [int(re.fullmatch(r"_c10d_2_(\d+)\.so", path.name)[1]) for path in self.extensions()]
        self.assertEqual(allowed_minors(needs), sorted(minors))


def allowed_minors(requirement):
    low, high = re.fullmatch(r"torch(?=.*>=2\.(\d+))(?=.*<2\.(\d+))[\d.,<>=]*", requirement).groups()
    return list(range(int(low), int(high)))


class Source(unittest.TestCase):
    """The source package: what pip compiles where there is no checkout."""

    FOLDERS = ("cmake", "python", "stormo")
    FILES = {"CMakeLists.txt", "LICENSE", "PKG-INFO", "packages.txt", "pyproject.toml", "docs/guides/pytorch.md",
             "tools/compile_seconds", "tools/precompile"}

    @classmethod
    def setUpClass(cls):
        [package] = FOLDER.glob("stormo_torch-*.tar.gz")
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        with tarfile.open(package) as archive:
            archive.extractall(temporary.name)
        [cls.tree] = pathlib.Path(temporary.name).iterdir()

    def test_files_are_those_of_the_library_and_of_the_package(self):
        here = {str(path.relative_to(self.tree)) for path in self.tree.rglob("*") if path.is_file()}
        ours = {str(path.relative_to(CHECKOUT)) for folder in self.FOLDERS for path in (CHECKOUT / folder).rglob("*")
                if path.is_file() and path.parent.name != "__pycache__"}
        self.assertEqual(here, ours | self.FILES)

    def test_configures_and_knows_all_its_sources(self):
        build = self.tree.parent / "build"
        output("cmake", "-S", self.tree, "-B", build, "-G", "Ninja", f"-DSTORMO_TORCH={TORCH}", "-DSTORMO_PYTHON=ON",
               "-DSTORMO_BUILD_TESTS=OFF", "-DSTORMO_MPI=OFF", "-DSTORMO_CURL=OFF",
               f"-DPython3_EXECUTABLE={TOOLS / 'python'}")
        self.assertIn("_c10d_", output("ninja", "-C", build, "-n", "stormo_torch_ext"))
        tools = set(re.findall(rf"{self.tree}/tools/\w+", output("ninja", "-C", build, "-t", "commands")))
        self.assertEqual([tool for tool in tools if not pathlib.Path(tool).exists()], [], "of what compiles")

    def test_is_for_the_torches_that_the_wheel_of_all_is_for(self):
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
        [needs] = project["project"]["dependencies"]
        self.assertEqual(allowed_minors(needs), [int(v.split(".")[1]) for v in project["tool"]["stormo"]["torch"]])


class Program(Wheel.Tests):
    name = "stormo"
    brings = set(LICENCES)

    def test_one_torch(self):
        [needs] = self.metadata.get_all("Requires-Dist")
        self.assertRegex(needs, r"^torch==2\.\d+\.\*$")

    def test_no_mpi_and_no_torch_are_brought(self):
        self.assertFalse([path for path in self.files if re.match(r"lib(mpi|torch|c10|gomp)", path.name)])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
