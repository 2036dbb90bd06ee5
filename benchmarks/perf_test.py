"""How is RabbitMQ's own PerfTest fetched and asked?

PerfTest (Maven Central, `com.rabbitmq:perf-test`) is what RabbitMQ's makers measure with. Its jars are fetched by
Maven once, into a directory that git ignores; without Java or Maven there is no PerfTest, and whoever wanted it is
told why. Its virtual machine shares the machine with the broker, the same for all brokers.
"""

import functools
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import median

VERSION = "2.22.1"
HOME = Path(__file__).resolve().parent.parent / ".services" / "perf-test" / VERSION
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>redrive.benchmarks</groupId>
  <artifactId>perf-test-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>com.rabbitmq</groupId>
      <artifactId>perf-test</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""
_SECOND = re.compile(r"received: ([0-9.,]+)")
_AVERAGE = re.compile(r"receiving rate avg: ([0-9.,]+)")


class NoPerfTestError(Exception):
    """PerfTest is not to be had here; the text says why."""


@functools.cache
def jars() -> Path:
    """The directory of its jars, fetched if they are not there."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise NoPerfTestError(f"there is no {program} on this machine")
    place = HOME / "jars"
    if not (place / f"perf-test-{VERSION}.jar").exists():
        HOME.mkdir(parents=True, exist_ok=True)
        pom = HOME / "pom.xml"
        pom.write_text(_POM.format(version=VERSION))
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={place}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NoPerfTestError(f"Maven could not fetch it: {done.stdout.strip()[-500:]}")
    return place


def rate(url: str, *, seconds: int, size: int, options: Sequence[str]) -> float:
    """Messages received per second by one consumer from one producer: the median of its seconds.

    The first second is left out where there are more, because the virtual machine is warming up.
    """
    command = ["java", "-cp", f"{jars()}/*", "com.rabbitmq.perf.PerfTest", "--uri", url]
    load = ["--producers", "1", "--consumers", "1", "--size", str(size), "--time", str(seconds)]
    done = subprocess.run(
        [*command, *load, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    each = [_number(found) for found in _SECOND.findall(done.stdout)]
    if len(each) > 1:
        return median(each[1:])
    average = _AVERAGE.search(done.stdout)
    if done.returncode or average is None:
        raise NoPerfTestError(f"it failed: {done.stdout.strip()[-500:]}")
    return _number(average.group(1))


def _number(text: str) -> float:
    return float(text.replace(",", ""))
