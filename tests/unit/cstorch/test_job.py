"""The share of the input that a process reads."""

from concurrent.futures import ThreadPoolExecutor

from cstorch import job


def test_questions_of_two_readers_are_kept_apart() -> None:
    def watch(*, asks: bool) -> list[bool]:
        with job.watch_questions() as found:
            if asks:
                job.num_streamers()
        return found

    with ThreadPoolExecutor(1) as pool:
        with job.watch_questions() as mine:
            assert pool.submit(watch, asks=True).result() == [True]
        assert mine == []
        with job.watch_questions() as mine:
            job.get_streaming_rank()
            assert pool.submit(watch, asks=False).result() == []
        assert mine == [True]
