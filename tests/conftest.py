"""What holds for every test: no record of it lands in the course's own folder, and property tests repeat exactly.

`--driver docker` gives labs that do not ask for a driver by name containers instead of processes.
"""

import pytest
from hypothesis import settings

# No deadline: a shared machine makes any single example slow now and then.
settings.register_profile("labkit", derandomize=True, database=None, deadline=None, max_examples=200)
settings.load_profile("labkit")


def pytest_addoption(parser):
    parser.addoption("--driver", default="local", choices=("local", "docker"), help="what driver='auto' stands for")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--driver") == "docker":
        for item in items:
            if item.get_closest_marker("local"):
                item.add_marker(pytest.mark.skip("about servers that are processes"))


@pytest.fixture(scope="session")
def driver(request) -> str:
    """The driver that this test session is about."""
    return request.config.getoption("--driver")


@pytest.fixture(scope="session", autouse=True)
def auto_driver(driver):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_DRIVER", driver)
        yield


@pytest.fixture(scope="session", autouse=True)
def labkit_home(tmp_path_factory):
    """The folder that takes the records and the learner's progress of this test session."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(folder))
        yield folder
