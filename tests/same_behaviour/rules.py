"""The values that differ between two runs of one build, and the texts that replace them."""

# Rules for values in JSON: (files, path of the key with [] for the items of a list, replacement, reason). A replacement
# that begins with "<whole: " replaces any value. Other replacements apply only to numbers, booleans and null, so that a
# change of type stays visible.
JSON_RULES = [
    (r"", r"(^|\.)(seconds|prompt_seconds|elapsed_seconds|training_seconds)$", "<seconds>", "a duration"),
    (r"", r"(^|\.)teacher_share$", "<share>", "a share of a duration"),
    (r"", r"(^|\.)tokens_per_second$", "<speed>", "a speed of this machine"),
    (
        r"^(validate|loop)",
        r"^speed\.(draft_cost|predicted|prediction_fits|verify_cost(_table)?\..*|table\[\]\.speedup|measured\.(speedup|ci\[\]))$",
        "<speed>",
        "measured times of steps and what is computed from them",
    ),
    (
        r"^(validate|loop)",
        r"^speed\.machine\.(busy|cpus|disagreeing|disturbed|others_cpus|runs|stolen_cpus|taken)$",
        "<machine>",
        "what else the machine did",
    ),
    (
        r"^(validate|loop)",
        r"^speed\.(schedule|schedule_figures|break_even)$",
        "<whole: speed>",
        "follows from the speeds, the number of rows too",
    ),
    (r"^bench", r"^rows\[\]\.(speedup|ttft_ms|itl_ms\..*|predicted_speedup|ci\[\])$", "<speed>", "measured times"),
    (r"^bench", r"^rows\[\]\.memory_bytes$", "<memory>", "resident memory of the process"),
    (
        r"^bench",
        r"^(machine|verdict|reason|ranking|verify_cost.*|draft_cost.*|costs|drafts\[\]\.(draft_cost|verify_cost.*))$",
        "<whole: speed>",
        "verdict and costs of bench are speeds alone",
    ),
    (
        r"^distill-run/checkpoints/.*/state.json$",
        r"^digest$",
        "<whole: digest>",
        "covers the seconds of the training so far; the digests of the checkpoint's files stay",
    ),
    (r"^loop-run", r"^begun\.package$", "<whole: key>", "covers the report of validate, which has durations"),
    (
        r"^monitor-drift",
        r"^actions\[\]\.key$",
        "<whole: key>",
        "that of a webhook covers the URL with its port; the others are kept in the rows of the state",
    ),
    (
        r"^http",
        r"^metrics\.(queued|prefill|decode|time|.*_seconds|.*_ms|.*_time).*$",
        "<seconds>",
        "durations of one answer",
    ),
]

# Rules for texts, applied after the JSON rules: (files, pattern, replacement, reason).
TEXT_RULES = [
    (r"", r"of [0-9.]+ [KMGT]iB available", "of <memory> available", "free memory of this machine"),
    (r"", r"\btook( +)[0-9.]+ m?s\b", r"took\1<seconds>", "a duration"),
    (
        r"",
        r"\b(chatcmpl|cmpl|req)-[0-9a-f]{32}\b",
        r"\1-<id>",
        "ids of requests are random so that nobody can guess them",
    ),
    (r"", r"tmp/[0-9A-Za-z._-]{6,}", "tmp/<temporary>", "names of temporary files are random"),
    (r"^(generate|help)", r"in [0-9.]+ s \([0-9]+ / s\)", "in <seconds> s (<speed> / s)", "a duration and a speed"),
    (r"^distill-run/.lock$", r"^[0-9]+$", "<pid>", "the process that wrote it"),
    (
        r"^serve-",
        r"draft [0-9.e-]+ ms/token, verify [0-9.e-]+ ms at K = 0 and [0-9.e-]+ ms at",
        "draft <time> ms/token, verify <time> ms at K = 0 and <time> ms at",
        "measured costs",
    ),
    (
        r"^serve-",
        r"(expected|would give) [0-9]+ tok/s at K = ([0-9]+) against [0-9]+ plain",
        r"\1 <speed> tok/s at K = \2 against <speed> plain",
        "speeds that follow from them",
    ),
    (r"^package", r"\buid [0-9]+@[^\"\s]+", "uid <uid>@<host>", "who promoted, and where"),
    (
        r"^serve-recorded",
        r"-20[0-9]{6}T[0-9]{6}Z-[0-9]+-",
        "-<time>-<pid>-",
        "names of record files: when and by which process",
    ),
    (r"^monitor-.*sql$", r"'[0-9]+:[0-9]+'", "'<device:inode>'", "a file is known by its inode"),
    (
        r"^monitor-.*sql$",
        r"(INSERT INTO .measurement. VALUES\()[0-9]+",
        r"\1<stretch>",
        "the ten minutes in which the check was made",
    ),
    (
        r"^monitor-.*sql$",
        r"(VALUES\([0-9]+,)'[0-9a-f]{64}'(,'webhook')",
        r"\1'<key>'\2",
        "covers the URL with its port",
    ),
    (r"^monitor-posted", r'("endsAt": )"[^"]*"', r'\1"<later>"', "four hours after the check"),
    (
        r"^monitor-served.sql$",
        r"('<device:inode>',)'[0-9a-f]{64}'",
        r"\1'<digest>'",
        "of the beginning of a file of records, which holds times",
    ),
    (
        r"^(distill|loop)",
        r"events\.out\.tfevents\.\S+",
        "events.out.tfevents.<time>.<host>.<pid>",
        "TensorBoard's name of the file: time, host and process",
    ),
    (r"^distill", r"\| [0-9]+ tokens/s, step", "| <speed> tokens/s, step", "a speed"),
    (r"^distill-run/report.html", r"[0-9]+ tokens/s", "<speed> tokens/s", "a speed"),
    (r"^distill-run/report", r"(tokens per second(</th><td>| \| ))[0-9]+", r"\1<speed>", "a speed"),
    (
        r"^distill-run/report",
        r"((wall time of the command|of it training)(</th><td>| \| ))[0-9hms]+",
        r"\1<seconds>",
        "a duration",
    ),
    (r"^distill-run/report", r"(answers took(</th><td>| \| ))[0-9]+ %", r"\1<share> %", "a share of a duration"),
    (r"^validate-all.*junit", r'time="[0-9.]+"', 'time="<seconds>"', "a duration"),
    (r"^validate-.*junit", r'time="[0-9.e-]+"', 'time="<seconds>"', "a duration"),
    (r"^data", r"(?m)^(ingest|stats|audit) .*( ETA .*)\n", "", "a line of progress, which only a slow run shows"),
    (r"^data", r"(?m)^(ingest|stats|audit)(  .* in )[0-9.]+s", r"\1\2<seconds>", "a duration"),
    (r"^loop", r"\bin [0-9.]+ (ms|s|min)\b", "in <seconds>", "a duration of a stage"),
]
