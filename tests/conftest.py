"""What holds for every test: no record of it lands in the course's own folder, and property tests repeat exactly."""

import pytest
from hypothesis import settings

# No deadline: a shared machine makes any single example slow now and then.
settings.register_profile("labkit", derandomize=True, database=None, deadline=None, max_examples=200)
settings.load_profile("labkit")


@pytest.fixture(scope="session", autouse=True)
def labkit_home(tmp_path_factory):
    """The folder that takes the records and the learner's progress of this test session."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(folder))
        yield folder
