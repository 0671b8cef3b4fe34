# SPDX-License-Identifier: Apache-2.0
"""Cold ranges of 8 MiB: stored, and the same without storing. bench/disk can also play slow
disks."""


def run(rig, report, args):
    rows = rig.program(
        "disk",
        "--disks",
        "real",
        "--pairs",
        str(args.rounds),
        "--seconds",
        "1" if args.quick else "2",
        "--dir",
        args.folder,
        "--engine",
        "io_uring" if args.engine == "auto" else args.engine,
    )
    report.head(
        "connections",
        "not stored MB/s",
        "stored MB/s",
        "stored / not stored",
        "CPU ms/MiB, not stored",
        "CPU ms/MiB, stored, workers",
        "CPU ms/MiB, stored, all threads",
    )
    for row in rows:
        text = f"{row['ratio']:.2f} ({row['least']:.2f}-{row['most']:.2f})"
        report.row(
            str(row["connections"]),
            row["plain"][0],
            row["cold"][0],
            text,
            row["plain"][2],
            *row["cold"][1:],
        )
        report.wanted(
            f"stored / not stored, {row['connections']} connections",
            row["ratio"],
            least=0.95,
            text=text,
        )
