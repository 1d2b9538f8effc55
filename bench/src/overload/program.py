"""A program that is not Rust: asyncio, one request at a time, a fixed amount of CPU for each.

With milliseconds alone it prints how many rounds take them. With rounds it serves, and prints its
port; each line that it reads is answered by one line of what it has counted.
"""

import asyncio
import json
import sys
import threading
import time

USED = 0.0
HANDLED = 0


def spin(rounds):
    x = 0
    for i in range(rounds):
        x = (x * 31 + i) & 0xFFFFFFFF
    return x


def rounds_for(seconds):
    rounds = 200_000
    spin(rounds)
    took = []
    for _ in range(21):
        start = time.thread_time()
        spin(rounds)
        took.append(time.thread_time() - start)
    return int(rounds * seconds / sorted(took)[10])


async def serve(rounds):
    async def answer(reader, writer):
        global USED, HANDLED
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                start = time.thread_time()
                spin(rounds)
                USED += time.thread_time() - start
                HANDLED += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def count():
        for _ in sys.stdin:
            print(json.dumps({"used": USED, "handled": HANDLED, "task": None}), flush=True)

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    threading.Thread(target=count, daemon=True).start()
    await server.serve_forever()


if sys.argv[1] == "rounds":
    print(rounds_for(float(sys.argv[2]) / 1000))
else:
    asyncio.run(serve(int(sys.argv[2])))
