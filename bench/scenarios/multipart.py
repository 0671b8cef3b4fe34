# SPDX-License-Identifier: Apache-2.0
"""Upload of one object in parts of 16 MiB and download of it in ranges, 8 at a time, from a real S3
server: through Forebay and direct. bench/multipart can also limit the link."""


def run(rig, report, args):
    got = rig.program(
        "multipart",
        "--pairs",
        str(args.rounds),
        "--size",
        "128" if args.quick else "256",
        "--folder",
        args.folder,
        "--engine",
        args.engine,
    )
    rows, mid = got["rows"], got["medians"]
    report.head("", "direct MiB/s", "through MiB/s", "through / direct", "memory MiB, most")
    for what, base, memory in (
        ("upload", "upload direct", "upload MiB"),
        ("cold", "download direct", "download MiB"),
        ("warm", "download direct", "download MiB"),
    ):
        ratios = sorted(row[f"{what} through"] / row[base] for row in rows)
        text = f"{ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        report.row(
            {"upload": "upload", "cold": "download, cold", "warm": "download, warm"}[what],
            mid[base],
            mid[f"{what} through"],
            text,
            max(row[memory] for row in rows),
        )
