"""A client of Doorman by grpcio, as its old ones speak, which tests run as

    doorman.py ADDRESS

It writes what it is told, one thing to a line. Messages are written and read by hand: there is no
generated code that could be of the same mind as the server.
"""

import struct
import sys
import time

import grpc

TIMEOUT = 30.0


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field, value):
    return varint(field << 3) + varint(value)


def double(field, value):
    return varint(field << 3 | 1) + struct.pack("<d", value)


def text(field, value):
    return chunk(field, value.encode())


def chunk(field, value):
    return varint(field << 3 | 2) + varint(len(value)) + value


def read(message):
    """Fields by number; each is a list."""
    fields, at = {}, 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        kind = key & 7
        if kind == 0:
            value = number()
        elif kind == 1:
            value = struct.unpack_from("<d", message, at)[0]
            at += 8
        else:
            length = number()
            value = message[at : at + length]
            at += length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def lease(message):
    """Expiry, refresh interval and capacity: all are required."""
    fields = read(message)
    return fields[1][0], fields[2][0], fields[3][0]


def main(address):
    channel = grpc.insecure_channel(address)

    def call(method, request):
        return read(channel.unary_unary(f"/doorman.Capacity/{method}")(request, timeout=TIMEOUT))

    def get(client, wants, has=None, resource="database", priority=1):
        held = chunk(3, integer(1, has[0]) + integer(2, has[1]) + double(3, has[2])) if has else b""
        asked = text(1, resource) + integer(2, priority) + held + double(4, wants)
        answer = call("GetCapacity", text(1, client) + chunk(2, asked))
        assert 2 not in answer, "a master does not say who is"
        response = read(answer[1][0])
        assert response[1][0].decode() == resource
        return lease(response[2][0]), response[3][0]

    found = call("Discovery", b"")
    print("master", bool(found[2][0]), read(found[1][0])[1][0].decode())

    # Three clients refresh in turn, each saying what it has, until everyone has its share.
    leases = {}
    for _ in range(4):
        for client, wants in (("a", 1000.0), ("b", 50.0), ("c", 10.0)):
            leases[client], safe = get(client, wants, leases.get(client))
    print("shares", *(leases[client][2] for client in "abc"))
    left = leases["a"][0] - time.time()
    print("lease", 55 <= left <= 61, leases["a"][1], safe)
    again, _ = get("a", 1000.0, leases["a"])
    print("same", again[2] == leases["a"][2])

    # What matters more is served first.
    print("urgent", get("urgent", 0.0, priority=2)[0][2])

    # Nonsense of old clients.
    print("nan", get("odd", float("nan"))[0][2])
    call("ReleaseCapacity", text(1, "a") + text(2, "") + text(2, "database"))
    print("released", get("b", 120.0, leases["b"])[0][2])
    try:
        get("", 1.0)
    except grpc.RpcError as error:
        print("refused", error.code().name)

    # A server of the tree, for the two clients behind it.
    band = integer(1, 1) + integer(2, 2) + double(3, 500.0)
    asked = text(1, "tree") + chunk(3, band)
    response = read(call("GetServerCapacity", text(1, "below") + chunk(2, asked))[1][0])
    algorithm = read(response[3][0])
    print("server", lease(response[2][0])[2], algorithm[1][0], algorithm[2][0], algorithm[3][0])


main(sys.argv[1])
