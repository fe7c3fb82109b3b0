"""Generate mail: invented headers and threads around passages of other documents of the corpus."""

import base64
import quopri
import textwrap
from collections.abc import Iterator, Sequence
from datetime import timedelta

from training.generate.world import World


def documents(seed: int, passages: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield ("mail" or "mbox", document) without end. `passages` are texts of some paragraphs."""
    number = 0
    while True:
        number += 1
        world = World(seed * 1_000_003 + number)
        world.pace = 10_000
        box = world.random.random() < 0.2
        people = [
            (world.person(), f"{world.user()}@{world.some((world.domain, 'example.com', 'mail.' + world.domain))}")
            for _ in range(5)
        ]
        subject = f"{world.some(('', '', f'[{world.noun()}-users] '))}{_subject(world, passages)}"
        answered: tuple[str, str, str] | None = None  # Message-ID, author, text of the mail answered
        mails = []
        for _ in range(world.random.randint(2, 9) if box else 1):
            sender, text = world.random.choice(people), _text(world, passages)
            mail, message_id = _mail(world, sender, world.random.choice(people), subject, text, answered)
            mails.append(f"From {sender[1]} {world.clock:%a %b %e %H:%M:%S %Y}\n{mail}" if box else mail)
            answered = message_id, sender[0], text
        yield ("mbox" if box else "mail"), ("\n".join(mails)).encode()


def _subject(world: World, passages: Sequence[str]) -> str:
    words = world.random.choice(passages).split()[: world.random.randint(2, 8)]
    return " ".join(words) or world.noun()


def _text(world: World, passages: Sequence[str]) -> str:
    passage = world.random.choice(passages)
    return "\n\n".join(textwrap.fill(part, 72) for part in passage.split("\n\n"))


def _mail(
    world: World,
    sender: tuple[str, str],
    to: tuple[str, str],
    subject: str,
    text: str,
    answered: tuple[str, str, str] | None,
) -> tuple[str, str]:
    clock = world.tick()
    host = sender[1].partition("@")[2]
    message_id = world.some(
        (
            f"<{world.hexes(24)}@{host}>",
            f"<{clock:%Y%m%d%H%M%S}.{world.hexes(6)}@{host}>",
            f"<CA{world.hexes(30)}@mail.{host}>",
        )
    )
    headers = [*_received(world, host, to[1])] if world.random.random() < 0.6 else []
    headers += [
        f"Date: {clock:%a}, {clock.day} {clock:%b %Y %H:%M:%S} {world.some(('+0000', '-0500', '+0100', '+0200', '-0800'))}",
        f"From: {world.some((f'{sender[0]} <{sender[1]}>', sender[1]))}", f"To: {world.some((f'{to[0]} <{to[1]}>', to[1]))}",
        f"Subject: {'Re: ' if answered else ''}{subject}", f"Message-ID: {message_id}",
    ]  # fmt: skip
    body = (
        f"Hi {to[0].split()[0]},\n\n{text}\n\n{world.some(('Best regards', 'Thanks', 'Cheers', '--'))}\n{sender[0]}\n"
    )
    if answered:
        headers += [f"In-Reply-To: {answered[0]}", f"References: {answered[0]}"]
        quoted = "\n".join(f"> {line}".rstrip() for line in answered[2].splitlines()[:14])
        body = f"On {clock - timedelta(hours=5):%a, %b %d, %Y at %I:%M %p} {answered[1]} wrote:\n{quoted}\n\n{body}"
    more, body = _encoded(world, body)
    return "\n".join(headers + more) + "\n\n" + body, message_id


def _encoded(world: World, body: str) -> tuple[list[str], str]:
    """Return a body as plain text, quoted-printable or MIME parts, and its headers."""
    kind = world.random.random()
    if kind < 0.6:
        charset = "us-ascii" if body.isascii() else "utf-8"
        text = f'Content-Type: text/plain; charset="{charset}"'
        return ["MIME-Version: 1.0", text, "Content-Transfer-Encoding: 8bit"], body
    if kind < 0.8:
        text = "Content-Type: text/plain; charset=utf-8"
        encoded = quopri.encodestring(body.encode()).decode()
        return ["MIME-Version: 1.0", text, "Content-Transfer-Encoding: quoted-printable"], encoded
    body, boundary = _parts(world, body)
    return [
        "MIME-Version: 1.0",
        f'Content-Type: multipart/{world.some(("alternative", "mixed"))}; boundary="{boundary}"',
    ], body


def _received(world: World, host: str, to: str) -> Iterator[str]:
    for hop in range(world.random.randint(1, 3)):
        clock = f"{world.clock:%a, %d %b %Y %H:%M:%S} +0000 (UTC)"
        yield (f"Received: from mail{hop}.{host} (mail{hop}.{host} [{world.some(world.addresses)}])\n\tby mx.{world.domain} (Postfix) "
               f"with ESMTPS id {world.hexes(11).upper()}\n\tfor <{to}>; {clock}")  # fmt: skip


def _parts(world: World, body: str) -> tuple[str, str]:
    boundary = world.some((f"000000000000{world.hexes(16)}", f"----=_Part_{world.number(9999)}_{world.hexes(8)}"))
    html = "".join(f"<p>{part.strip()}</p>\n" for part in body.split("\n\n"))
    second = f"Content-Type: text/html; charset=utf-8\n\n<html><body>\n{html}</body></html>"
    if world.random.random() < 0.3:
        packed = base64.encodebytes(world.random.randbytes(world.random.randint(100, 1500))).decode()
        name = f"{world.noun()}.{world.some(('pdf', 'png', 'zip'))}"
        second = f'Content-Type: application/octet-stream; name="{name}"\nContent-Transfer-Encoding: base64\nContent-Disposition: attachment; filename="{name}"\n\n{packed}'
    return (
        f"--{boundary}\nContent-Type: text/plain; charset=utf-8\n\n{body}\n--{boundary}\n{second}\n--{boundary}--\n",
        boundary,
    )
