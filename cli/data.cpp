// Defines `specdec data ingest | stats | audit`; cli/data_regenerate.cpp and cli/data_label.cpp
// define `regenerate` and `label`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/model_directory.h"
#include "base/secret.h"
#include "base/shell.h"
#include "cli/command.h"
#include "cli/data_commands.h"
#include "cli/data_label.h"
#include "cli/data_results.h"
#include "cli/holdout_advice.h"
#include "data/audit.h"
#include "data/formats/row_parser.h"
#include "data/ingest.h"
#include "data/shards/shard_writer.h"
#include "data/stats.h"

namespace specdec::cli {

bool names_endpoint(const std::string& text) { return text.starts_with("http://") || text.starts_with("https://"); }

void print_splits(const ShardIndex& index, const std::string& out) {
  for (const auto& [split, size] : split_sizes(index))
    std::printf("%-8s %8lld rows %12lld tokens %12lld loss tokens\n", split.c_str(), static_cast<long long>(size.rows),
                static_cast<long long>(size.tokens), static_cast<long long>(size.loss_tokens));
  std::printf("written to %s\n", out.c_str());
}

namespace {

// Prints the rows that were left out, one line per reason: first the rejected rows, the most frequent reason first,
// then the dropped rows.
void print_left_out(const data::IngestReport& report, const std::string& out) {
  std::vector<std::pair<int64_t, std::string>> lines;
  for (const auto& [reason, n] : report.rejects) lines.emplace_back(-n, reason);
  std::sort(lines.begin(), lines.end());
  for (const auto& [n, reason] : lines) std::printf("rejected %8lld %s\n", static_cast<long long>(-n), reason.c_str());
  const bool all =
      std::none_of(lines.begin(), lines.end(), [](const auto& l) { return -l.first > data::kMostRejectLines; });
  if (!lines.empty())
    std::printf("                  %s in %s\n",
                all ? "each" : ("the first " + std::to_string(data::kMostRejectLines) + " of each reason").c_str(),
                (fs::path(out) / "rejects.jsonl").c_str());
  const std::pair<int64_t, const char*> dropped[] = {{report.duplicates, "equal to an earlier row"},
                                                     {report.near_duplicates, "nearly equal to an earlier row"},
                                                     {report.skipped, "skipped"},
                                                     {report.capped, "over the tenant's cap"},
                                                     {report.thinned, "over the domain's share"}};
  for (const auto& [n, why] : dropped)
    if (n) std::printf("dropped  %8lld %s\n", static_cast<long long>(n), why);
}

// Returns the command to run next. Usually this is `distill` on the new data. If too few conversations are held out for
// a verdict of `distill`, returns the same `data ingest` command with a larger --holdout. Returns "" if there is
// nothing to train on, or if even half of the conversations would be too few to hold out.
std::string next_of(const Global& global, bool can_train, const std::string& target, const std::string& out,
                    const HoldoutAdvice& advice) {
  if (!advice.warning.empty() && advice.share == 0) return "";
  if (!advice.warning.empty()) {
    std::vector<std::string> words = {"specdec"};
    words.insert(words.end(), global.arguments.begin(), global.arguments.end());
    return shell_words(with_holdout(std::move(words), advice.share));
  }
  if (!can_train) return "";
  return shell_words({"specdec", "distill", "--target", target, "--data", out, "--draft", "prune:2", "--out", "run"});
}

// Prints how to read the rows whose format is unknown, if there are any.
void print_suggestion(const data::IngestResult& done) {
  if (!done.suggestion.empty()) std::printf("unknown_format: %s\n", done.suggestion.c_str());
}

// Checks the options of `data ingest`. Throws Error(kUsage).
void check_ingest(const data::IngestOptions& options) {
  if (!options.records && options.target.empty())
    throw Error(ErrorKind::kUsage,
                "--target is required: the model whose tokenizer and chat template the rows get (or --records)");
  for (const std::string& source : options.sources)
    if (source.find("://") != std::string::npos)
      throw Error(ErrorKind::kUsage, SecretUrl(source).shown() +
                                         ": expected a file or a directory, found a URL: copy the logs to this machine "
                                         "first, such as with aws s3 cp or curl");
  data::validate(options);
}

void print_ingested(const data::IngestResult& done, const data::IngestOptions& options, const std::string& target,
                    const std::string& next, const std::string& started, double seconds) {
  const data::IngestReport& report = done.report;
  const ReadRows read = {done.split_rule,        done.suggestion, next,           report.records,     report.skipped,
                         report.near_duplicates, report.capped,   report.thinned, done.unlearnt_turns};
  std::vector<InputFile> inputs;
  if (!options.records) inputs.push_back({target, "", done.index.target_id});
  for (const ShardSource& source : done.index.sources) inputs.push_back({source.file, source.sha256, ""});
  if (options.records) {
    RecordsResult result;
    result.inputs = inputs, result.out = options.out, result.report = report, result.read = read;
    print_result(result, started, seconds);
  } else {
    ShardsResult result;
    result.inputs = inputs, result.out = options.out, result.index = done.index, result.read = read;
    result.splits = split_sizes(done.index);
    print_result(result, started, seconds);
  }
}

int run_ingest(const Global& global, data::IngestOptions options) {
  const SystemClock clock;
  const std::string started = format_utc(clock.unix_seconds());
  const double start = clock.seconds();
  const std::string target = options.target;
  data::require_replaceable(options.out);  // checked before a target is downloaded
  if (!options.records) options.target = resolve_model(target).directory.string();
  const data::IngestResult done = data::ingest(options, make_progress(global));
  const data::IngestReport& report = done.report;
  const std::map<std::string, SplitSize> splits = split_sizes(done.index);
  const HoldoutAdvice advice =
      options.records ? HoldoutAdvice{} : holdout_advice(done.conversations, done.held_out_conversations);
  if (!advice.warning.empty()) log(LogLevel::kWarn, options.out + ": " + advice.warning);
  const std::string next =
      options.records ? "" : next_of(global, splits.contains("train"), target, options.out, advice);
  if (global.json) {
    print_ingested(done, options, target, next, started, clock.seconds() - start);
    return 0;
  }
  std::map<std::string, int64_t> formats;
  for (const data::SourceCounts& s : report.sources)
    for (const auto& [name, n] : s.formats) formats[name] += n;
  std::printf("read     %8lld rows: %s\n", static_cast<long long>(report.records), data::counts_text(formats).c_str());
  print_left_out(report, options.out);
  if (!report.redactions.empty()) std::printf("redacted %s\n", data::counts_text(report.redactions).c_str());
  if (options.records) {
    std::printf("written  %8lld records to %s\n", static_cast<long long>(report.accepted),
                (fs::path(options.out) / "records.jsonl").c_str());
    print_suggestion(done);
    return 0;
  }
  if (done.index.truncated_rows)
    std::printf("cut      %8lld rows, %lld tokens dropped\n", static_cast<long long>(done.index.truncated_rows),
                static_cast<long long>(done.index.dropped_tokens));
  if (done.unlearnt_turns)
    std::printf("masked   %8lld earlier answers, which the chat template renders otherwise than they were served\n",
                static_cast<long long>(done.unlearnt_turns));
  print_splits(done.index, options.out);
  print_suggestion(done);
  if (!next.empty()) std::printf("next     %s\n", next.c_str());
  return 0;
}

struct AuditFlags {
  std::string data, target;
};

int run_audit(const Global& global, const AuditFlags& flags) {
  const SystemClock clock;
  const std::string started = format_utc(clock.unix_seconds());
  const double start = clock.seconds();
  const data::DataAudit audit =
      data::data_audit(flags.data, flags.target.empty() ? "" : resolve_model(flags.target).directory.string());
  if (!global.json) {
    std::fputs(data::to_table(audit).c_str(), stdout);
    return 0;
  }
  AuditResult result;
  result.inputs = {{flags.data, audit.stats.digest, ""}};
  result.audit = audit;
  print_result(result, started, clock.seconds() - start);
  return 0;
}

int run_stats(const Global& global, const data::StatsOptions& options) {
  const SystemClock clock;
  const std::string started = format_utc(clock.unix_seconds());
  const double start = clock.seconds();
  const data::DataStats stats = data::data_stats(options.data);
  if (!global.json) {
    std::fputs(data::to_table(stats).c_str(), stdout);
    return 0;
  }
  StatsResult result;
  result.inputs = {{options.data, stats.digest, ""}};
  result.stats = stats;
  print_result(result, started, clock.seconds() - start);
  return 0;
}

void add_split_flags(CLI::App& sub, data::IngestOptions& o) {
  sub.add_option("--holdout", o.holdout, "Share of the conversations held out")->capture_default_str()->group("Split");
  sub.add_option("--holdout-count", o.holdout_count, "Number of conversations held out, instead of a share")
      ->group("Split");
  sub.add_option("--holdout-rule", o.holdout_rule, "auto | time (the latest) | hash (seeded) | first")
      ->type_name("auto|time|hash|first")
      ->capture_default_str()
      ->group("Split");
  sub.add_option("--holdout-src", o.holdout_source, "File whose rows are all held out, with their conversations")
      ->type_name("FILE")
      ->group("Split");
  sub.add_option("--order", o.order, "given | shuffle: rows of the training split")
      ->type_name("given|shuffle")
      ->capture_default_str()
      ->group("Split");
  add_seed_flag(sub, o.seed, "Seed of the hash split and of the shuffle")->group("Split");
}

void add_domain_flags(CLI::App& sub, data::IngestOptions& o) {
  sub.add_option("--domain", o.domain, "Domain tag for every row of this call")->type_name("NAME")->group("Domains");
  sub.add_option("--domain-field", o.domain_field,
                 "Field that holds the domain tag (else \"domain\"); a.b looks inside a")
      ->type_name("FIELD")
      ->group("Domains");
  sub.add_option("--domain-rules", o.domain_rules,
                 "File of rules 'DOMAIN [in PART]: PATTERN' for rows without a tag; the first match counts")
      ->type_name("FILE")
      ->group("Domains");
  sub.add_option("--domain-clusters", o.domain_clusters,
                 "Group the rows that are still without a tag into N domains (cluster-1, …) by the words of their "
                 "prompts; 0 = none")
      ->capture_default_str()
      ->group("Domains");
  sub.add_option("--mix", o.mix, "DOMAIN=SHARE,…: thin the training split to these shares of its rows")
      ->type_name("DOMAIN=SHARE,...")
      ->group("Domains");
  sub.add_option("--tenant-field", o.tenant_field, "Field that holds the tenant (else the format's own: team, user, …)")
      ->type_name("FIELD")
      ->group("Domains");
  sub.add_option("--tenant-cap", o.tenant_cap, "Keep at most N rows of one tenant in the training split; 0 = all")
      ->capture_default_str()
      ->group("Domains");
}

void add_ingest(Cli& cli, CLI::App& data) {
  auto o = std::make_shared<data::IngestOptions>();
  CLI::App* sub =
      data.add_subcommand("ingest", "Converts traffic logs to redacted, deduplicated, split, tokenised shards");
  sub->add_option("sources", o->sources,
                  "Files, patterns ('logs/*.jsonl.zst'), directories of .jsonl, .ndjson, .json, .csv, .tsv, .parquet "
                  "and .txt files (serve --record fills one), or - for standard input;\n"
                  "gzip and zstd are read as they are")
      ->type_name("FILE|DIR");
  sub->add_option("--target", o->target, "MODEL whose tokenizer and chat template are used")->type_name("MODEL");
  sub->add_option("--out", o->out, "Directory to write; an earlier output of specdec data there is replaced")
      ->type_name("DIR")
      ->required();
  sub->add_flag("--records", o->records,
                "Write the redacted records (OUT/records.jsonl) and no shards; needs no --target");
  std::string formats = data::format_names();
  std::erase(formats, ' ');
  sub->add_option("--format", o->format, data::format_names())->type_name(formats)->capture_default_str();
  sub->add_option("--map", o->map,
                  "KEY=FIELD,…: read every row by these fields and recognise no format, for example "
                  "prompt=question,answer=meta.reply; a.b looks inside a. KEY: prompt and\n"
                  "answer, or messages; and system, model, domain, time, conversation, tenant, temperature")
      ->type_name("KEY=FIELD,...");
  sub->add_option("--separator", o->separator,
                  "Separator between documents of plain text; \"\" = one document per file")
      ->type_name("TEXT")
      ->capture_default_str();
  sub->add_option("--max-length", o->max_length, "Keep the first N tokens of a row, BOS included; 0 = no cut")
      ->capture_default_str();
  sub->add_option("--learn", o->learn,
                  "Answers of a chat that are learnt: all | last (the one that the request was sent for; those before "
                  "it are examples or were learnt with their own request)")
      ->capture_default_str()
      ->check(CLI::IsMember({"all", "last"}));
  sub->add_option("--max-record-bytes", o->max_record_bytes, "Longer lines and documents are rejected")
      ->capture_default_str();
  sub->add_option("--min-chars", o->min_chars,
                  "Reject rows with fewer Unicode characters of content (white space around text not counted)");
  sub->add_option("--skip", o->skip, "Skip the first N accepted rows, in file order");
  sub->add_option("--limit", o->limit, "Keep N rows after these and stop reading; 0 = all");
  sub->add_option("--written-by", o->written_by, "Model that wrote the answers, where the log does not say")
      ->type_name("NAME")
      ->capture_default_str();
  add_split_flags(*sub, *o);
  add_domain_flags(*sub, *o);
  sub->add_option(
         "--salt", o->salt,
         "File of the secret that tenants, conversations and ids are hashed with; created if it is missing (default: "
         "OUT.salt). Data directories\n"
         "that share it have the same ids; whoever has it can test guesses of names: do not share it with others")
      ->type_name("FILE");
  sub->add_flag_callback("--no-redact", [o] { o->redact = false; }, "Keep personal data and secrets as they are");
  sub->add_flag_callback("--no-dedup", [o] { o->dedup = false; }, "Keep rows with equal content");
  sub->add_option(
         "--near-duplicates", o->near_duplicates,
         "Drop rows whose newest exchange has this Jaccard similarity (0.5 … 1, say 0.8) with an earlier one; 0 = off")
      ->capture_default_str();
  sub->footer(
      "Examples:\n"
      "  specdec data ingest logs/*.jsonl --target T --out traffic --max-length 2048\n"
      "  specdec data ingest stories.txt --target stories260K --out data --min-chars 101 --max-length 256 "
      "--holdout-count 200 --holdout-rule first\n"
      "  specdec data ingest traffic/ --target store:production --out data --domain-field team\n"
      "  specdec data ingest own.jsonl --target T --out traffic --map prompt=question,answer=reply,time=meta.ts\n"
      "Exit codes: 0 done (rejected rows are counted, see OUT/rejects.jsonl), 2 OUT was not written by specdec data, 7 "
      "bad input or no row "
      "accepted, 130 or 143 stopped by a signal.");
  sub->callback([&cli, o] {
    cli.check = [o] { check_ingest(*o); };
    cli.selected = [&cli, o] { return run_ingest(cli.global, *o); };
  });
}

void add_stats(Cli& cli, CLI::App& data) {
  auto o = std::make_shared<data::StatsOptions>();
  CLI::App* sub = data.add_subcommand(
      "stats", "Shows counts, lengths, domains, tokens and coverage of a data directory; checks every digest");
  sub->add_option("dir", o->data, "Output of data ingest or data regenerate")->type_name("DIR")->required();
  sub->footer("Examples:\n  specdec data stats traffic\n  specdec --json data stats traffic");
  sub->callback([&cli, o] { cli.selected = [&cli, o] { return run_stats(cli.global, *o); }; });
}

void add_audit(Cli& cli, CLI::App& data) {
  auto f = std::make_shared<AuditFlags>();
  CLI::App* sub = data.add_subcommand("audit",
                                      "Shows what a data directory contains and where it came from: sources, formats, "
                                      "tenants, rejects, personal data, lengths");
  sub->add_option("dir", f->data, "Output of data ingest or data regenerate")->type_name("DIR")->required();
  sub->add_option("--target", f->target,
                  "MODEL that the data was made for: its tokenizer turns the rows back into text, which is searched "
                  "for personal data again")
      ->type_name("MODEL");
  sub->footer("Examples:\n  specdec data audit traffic\n  specdec --json data audit traffic --target T");
  sub->callback([&cli, f] { cli.selected = [&cli, f] { return run_audit(cli.global, *f); }; });
}

}  // namespace

void add_data(Cli& cli) {
  CLI::App* data = cli.app.add_subcommand("data", "Turns production traffic into training data");
  data->require_subcommand(1);
  data->footer(
      "Examples:\n"
      "  specdec data ingest logs/*.jsonl --target T --out traffic\n"
      "  specdec data stats traffic\n"
      "  specdec data regenerate traffic --target T --out traffic-own        # answers written by the target itself");
  add_ingest(cli, *data);
  add_stats(cli, *data);
  add_audit(cli, *data);
  add_regenerate(cli, *data);
  add_label(cli, *data);
}

}  // namespace specdec::cli
