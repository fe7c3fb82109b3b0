"""Generate logs of operating systems: syslog, sshd, postfix, kernel, systemd's journal, firewalls, cron."""

from collections.abc import Iterator

from training.generate.world import World


def syslog(world: World) -> Iterator[str]:
    pids = {service: world.random.randrange(300, 30_000) for service in world.services}
    host = world.hosts[0]
    while True:
        service = world.some(world.services)
        yield f"{world.tick():%b %e %H:%M:%S} {host} {service}[{pids[service]}]: {world.message()}"


def sshd(world: World) -> Iterator[str]:
    host = world.hosts[0]
    while True:
        pid, ip, port = (
            world.random.randrange(800, 32_000),
            world.some(world.addresses),
            world.random.randrange(1024, 65535),
        )
        user = world.some(world.users)

        def line(text: str, pid: int = pid) -> str:
            return f"{world.tick():%b %e %H:%M:%S} {host} sshd[{pid}]: {text}"

        if world.random.random() < 0.55:
            guess = world.random.choice(("root", "admin", "test", "oracle", "ubuntu", "postgres", user))
            if guess != "root":
                yield line(f"Invalid user {guess} from {ip} port {port}")
            yield line("pam_unix(sshd:auth): check pass; user unknown" if guess != "root" else
                       f"pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost={ip}  user=root")  # fmt: skip
            yield line(
                f"Failed password for {'' if guess == 'root' else 'invalid user '}{guess} from {ip} port {port} ssh2"
            )
            yield line(
                f"Connection closed by {'authenticating' if guess == 'root' else 'invalid'} user {guess} {ip} port {port} [preauth]"
            )
        else:
            yield line(f"Accepted publickey for {user} from {ip} port {port} ssh2: ED25519 SHA256:{world.hexes(43)}")
            yield line(f"pam_unix(sshd:session): session opened for user {user}(uid={1000 + len(user)}) by (uid=0)")
            if world.random.random() < 0.7:
                yield line(f"Received disconnect from {ip} port {port}:11: disconnected by user")
                yield line(f"pam_unix(sshd:session): session closed for user {user}")


def postfix(world: World) -> Iterator[str]:
    host = "mail." + world.domain
    while True:
        queue, who, ip = world.hexes(10).upper(), world.some(world.users), world.some(world.addresses)
        stamp, pid = f"{world.tick():%b %e %H:%M:%S} mail", world.random.randrange(1000, 30_000)
        yield f"{stamp} postfix/smtpd[{pid}]: connect from unknown[{ip}]"
        if world.random.random() < 0.25:
            yield (f"{stamp} postfix/smtpd[{pid}]: NOQUEUE: reject: RCPT from unknown[{ip}]: 554 5.7.1 <{who}@{world.domain}>: "
                   f"Relay access denied; from=<{who}@{world.noun()}.com> to=<{who}@{world.domain}> proto=ESMTP helo=<{world.noun()}>")  # fmt: skip
        else:
            yield f"{stamp} postfix/smtpd[{pid}]: {queue}: client=unknown[{ip}]"
            yield f"{stamp} postfix/cleanup[{pid + 3}]: {queue}: message-id=<{world.hexes(16)}@{host}>"
            yield f"{stamp} postfix/qmgr[1204]: {queue}: from=<{who}@{world.domain}>, size={world.number(90_000)}, nrcpt=1 (queue active)"
            delay = world.random.random() * 3
            status = world.some(
                (
                    "sent (250 2.0.0 Ok: queued as {})",
                    "deferred (connect to mx: Connection timed out)",
                    "bounced (user unknown)",
                )
            )
            yield (f"{stamp} postfix/smtp[{pid + 9}]: {queue}: to=<{world.some(world.users)}@{world.domain}>, relay=mx.{world.domain}[{ip}]:25, "
                   f"delay={delay:.2g}, delays={delay / 3:.2g}/0.01/{delay / 4:.2g}/{delay / 5:.2g}, dsn=2.0.0, status={status.format(world.hexes(10).upper())}")  # fmt: skip
            yield f"{stamp} postfix/qmgr[1204]: {queue}: removed"
        yield f"{stamp} postfix/smtpd[{pid}]: disconnect from unknown[{ip}] ehlo=1 mail=1 rcpt=1 data=1 quit=1 commands=5"


def kernel(world: World) -> Iterator[str]:
    uptime = 0.0
    buses = [
        f"{world.random.randrange(256):02x}:{world.random.randrange(32):02x}.{world.random.randrange(8)}"
        for _ in range(8)
    ]
    while True:
        uptime += world.random.expovariate(1 / (0.001 if uptime < 2 else world.pace))
        bus, low = world.some(buses), world.random.getrandbits(32) & ~0xFFF
        text = world.some((
            f"pci 0000:{bus}: reg 0x{world.random.randrange(16, 48, 4):02x}: [mem 0x{low:08x}-0x{low + 0xFFFF:08x} 64bit pref]",
            f"usb {world.random.randrange(1, 5)}-{world.random.randrange(1, 9)}: new high-speed USB device number {world.number(40)} using xhci_hcd",
            f"{world.noun()}: module loaded, {world.message()}",
            f"eth{world.random.randrange(3)}: link up, {world.some((1000, 100, 10000))} Mbps, full-duplex, flow control rx/tx",
            f"EXT4-fs (sda{world.random.randrange(1, 6)}): mounted filesystem {world.uuid()} r/w with ordered data mode. Quota mode: none.",
            f"BIOS-e820: [mem 0x{low:016x}-0x{low + 0xFFFFF:016x}] {world.some(('usable', 'reserved', 'ACPI data', 'ACPI NVS'))}",
            f"audit: type=1400 audit({world.tick().timestamp():.3f}:{world.number(900)}): apparmor=\"STATUS\" operation=\"profile_load\" profile=\"unconfined\" name=\"{world.noun()}\"",
            f"Out of memory: Killed process {world.number(30_000)} ({world.some(world.services)}) total-vm:{world.number(9e7)}kB, anon-rss:{world.number(9e6)}kB, file-rss:0kB",
            f"i2c i2c-{world.random.randrange(9)}: {world.message()}",
            f"docker0: port {world.random.randrange(1, 9)}(veth{world.hexes(7)}) entered {world.some(('blocking', 'disabled', 'forwarding'))} state",
        ))  # fmt: skip
        yield f"[{uptime:12.6f}] {text}"


def journal(world: World) -> Iterator[str]:
    host = world.hosts[0]
    while True:
        unit = world.some(world.services)
        stamp = f"{world.tick():%b %d %H:%M:%S} {host} systemd[1]"
        description = (
            f"{world.noun().capitalize()} {world.noun()} {world.some(('daemon', 'service', 'cleanup', 'server'))}"
        )
        yield f"{stamp}: Starting {unit}.service - {description}..."
        if world.random.random() < 0.2:
            yield f"{stamp}: {unit}.service: Main process exited, code=exited, status={world.some((1, 2, 127, 203))}/FAILURE"
            yield f"{stamp}: {unit}.service: Failed with result 'exit-code'."
            yield f"{stamp}: Failed to start {unit}.service - {description}."
            yield f"{stamp}: {unit}.service: Scheduled restart job, restart counter is at {world.number(30)}."
        else:
            yield f"{world.clock:%b %d %H:%M:%S} {host} {unit}[{world.number(30_000)}]: {world.message()}"
            yield f"{stamp}: Started {unit}.service - {description}."
            if world.random.random() < 0.5:
                yield f"{stamp}: {unit}.service: Deactivated successfully."
                yield f"{stamp}: {unit}.service: Consumed {world.random.random() * 9:.3f}s CPU time, {world.number(400)}.{world.number(9)}M memory peak."


def firewall(world: World) -> Iterator[str]:
    host, mac = world.hosts[0], ":".join(world.hexes(2) for _ in range(14))
    while True:
        source, target = world.some(world.addresses), world.addresses[-1]
        protocol = world.some(("TCP", "UDP", "ICMP"))
        port = world.some((22, 23, 445, 3389, 80, 8080, 5060, 1433, 6379, 53, 123))
        tail = f"SPT={world.random.randrange(1024, 65535)} DPT={port} "
        tail += (
            f"WINDOW={world.some((1024, 65535, 29200, 0))} RES=0x00 SYN URGP=0"
            if protocol == "TCP"
            else f"LEN={world.number(500)}"
        )
        yield (f"{world.tick():%b %e %H:%M:%S} {host} kernel: [{world.clock.timestamp() % 1e6:.6f}] [UFW {world.some(('BLOCK', 'AUDIT', 'ALLOW'))}] "
               f"IN=eth0 OUT= MAC={mac} SRC={source} DST={target} LEN={world.some((40, 60, 52, 44))} TOS=0x00 PREC=0x00 "
               f"TTL={world.random.randrange(30, 255)} ID={world.random.randrange(65535)} PROTO={protocol} {tail}")  # fmt: skip


def cron(world: World) -> Iterator[str]:
    jobs = [
        f"{world.some(('/usr/bin/', '/opt/bin/', 'cd / && '))}{world.verb()}-{world.noun()} --{world.noun()} >/dev/null 2>&1"
        for _ in range(6)
    ]
    while True:
        pid, user = world.number(32_000), world.some(("root", *world.users))
        yield f"{world.tick():%Y-%m-%dT%H:%M:%S.%f%z} {world.hosts[0]} CRON[{pid}]: pam_unix(cron:session): session opened for user {user}(uid=0) by (uid=0)"
        yield f"{world.clock:%Y-%m-%dT%H:%M:%S.%f%z} {world.hosts[0]} CRON[{pid + 1}]: ({user}) CMD ({world.some(jobs)})"
        yield f"{world.clock:%Y-%m-%dT%H:%M:%S.%f%z} {world.hosts[0]} CRON[{pid}]: pam_unix(cron:session): session closed for user {user}"
