"""A program that is not Rust: asyncio, one request at a time, a fixed amount of CPU for each."""

import asyncio
import sys
import time


def spin(rounds):
    x = 0
    for i in range(rounds):
        x = (x * 31 + i) & 0xFFFFFFFF
    return x


def rounds_for(seconds):
    rounds = 10_000
    while True:
        start = time.process_time()
        spin(rounds)
        took = time.process_time() - start
        if took > 0.05:
            return int(rounds * seconds / took)
        rounds *= 2


async def main(millis):
    rounds = rounds_for(millis / 1000)

    async def serve(reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                spin(rounds)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    # It ends with whoever started it.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main(float(sys.argv[1])))
