"""A client of gRPC's health service by grpcio, which tests run as

    client.py ADDRESSES SERVICE_CONFIG calls COUNT ABOUT    one call after the other
    client.py ADDRESSES SERVICE_CONFIG flow PER_SECOND      until its input ends

It writes the status of each call to a line of its own; a flow does so for calls that fail only.
"""

import os
import sys
import threading
import time

import grpc

# Calls that are to be answered are, within seconds; this is for those that never would be.
TIMEOUT = 30.0


def check(channel, about):
    """Asks about a service, and says how that ended. The message has one field, a string."""
    method = channel.unary_unary("/grpc.health.v1.Health/Check")
    request = bytes([1 << 3 | 2, len(about)]) + about.encode() if about else b""
    try:
        method(request, timeout=TIMEOUT, wait_for_ready=True)
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


def calls(channel, count, about):
    for _ in range(int(count)):
        print(check(channel, about), flush=True)


def flow(channel, per_second):
    threading.Thread(target=end_with_input, daemon=True).start()
    pause = 1.0 / float(per_second)
    due = time.monotonic()
    while True:
        status = check(channel, "")
        if status != "OK":
            print(status, flush=True)
        # Time that was lost is lost: catching up would be a burst.
        due = max(due + pause, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def end_with_input():
    sys.stdin.read()
    os._exit(0)


def options(config):
    return [
        ("grpc.service_config", config),
        # Tests are on this machine, whatever proxy it is behind.
        ("grpc.enable_http_proxy", 0),
        # Else it is the list of addresses, whose commas no server takes in an authority.
        ("grpc.default_authority", "localhost"),
    ]


def main():
    addresses, config, what, *arguments = sys.argv[1:]
    with grpc.insecure_channel(f"ipv4:{addresses}", options(config)) as channel:
        {"calls": calls, "flow": flow}[what](channel, *arguments)


main()
