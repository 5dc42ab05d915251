#include "data/ingest.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "base/file.h"
#include "base/fingerprint.h"
#include "base/sha256.h"
#include "data/record_reader.h"
#include "data/redact.h"
#include "data/row_parser.h"
#include "data/row_spool.h"
#include "data/shard_writer.h"
#include "data/split.h"
#include "data/tokenise.h"

namespace specdec::data {

namespace {

constexpr double kMegabyte = 1e6;

// Content with runs of white space as one space: equal digests mean equal rows. Fields are kept apart by NUL and 1.
std::string content_digest(const TrafficRecord& record) {
  Sha256 sha;
  const auto add = [&sha](char kind, std::string_view name, std::string_view text) {
    std::string collapsed{kind};
    collapsed.append(name).push_back('\1');
    bool gap = false;
    for (const char c : text) {
      if (c == ' ' || (c >= '\t' && c <= '\r')) {
        gap = collapsed.back() != '\1';
        continue;
      }
      if (gap) collapsed += ' ';
      gap = false;
      collapsed += c;
    }
    collapsed += '\0';
    sha.update(collapsed);
  };
  for (const ChatMessage& m : record.messages) add('m', m.role, m.content);
  if (!record.prompt.empty() || !record.response.empty()) {
    add('p', "", record.prompt);
    add('r', "", record.response);
  }
  if (!record.text.empty()) add('t', "", record.text);
  return sha.hex();
}

// A directory stands for its own traffic files in the order of their names: `serve --record` fills one.
std::vector<std::string> expand_sources(const std::vector<std::string>& sources) {
  std::vector<std::string> files;
  for (const std::string& source : sources) {
    if (!fs::is_directory(source)) {
      files.push_back(source);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::directory_iterator(source)) {
      const std::string extension = entry.path().extension().string();
      if (entry.is_regular_file() && (extension == ".jsonl" || extension == ".ndjson" || extension == ".json" || extension == ".txt"))
        inside.push_back(entry.path().string());
    }
    if (inside.empty()) throw Error(ErrorKind::kData, source + ": a directory without .jsonl, .ndjson, .json or .txt files");
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

class Ingest {
 public:
  Ingest(const IngestOptions& options, const ProgressFn& progress)
      : options_(options), progress_(progress), tokeniser_(options.target) {
    row_options_ = {options.format == "plain" ? RowFormat::kText : parse_row_format(options.format), options.domain_field,
                    tokeniser_.has_chat_template()};
    result_.index.tokenizer_digest = tokenizer_digest(options.target);
    result_.index.target_id = target_id(options.target);
    result_.index.vocab_size = tokeniser_.tokenizer().vocab_size();
    result_.index.written_by = options.written_by;
    result_.index.max_length = options.max_length;
    result_.index.tool_version = SPECDEC_VERSION;
  }

  IngestResult run() {
    publish_shards(options_.out, [this](const fs::path& directory) { return fill(directory); });
    return std::move(result_);
  }

 private:
  // Weights are not needed here: a directory with only a tokenizer gives an id that no target has.
  static std::string target_id(const fs::path& target) {
    const bool weights = fs::exists(target / "model.safetensors") || fs::exists(target / "model.safetensors.index.json");
    return weights ? fingerprint_model(target).id : std::string(64, '0');
  }

  ShardIndex fill(const fs::path& directory) {
    rejects_ = std::make_unique<OutputFile>(directory / "rejects.jsonl");
    spool_ = std::make_unique<RowSpool>(directory / "spool");
    const std::vector<std::string> sources = expand_sources(options_.sources);
    for (const std::string& source : sources) total_bytes_ += InputFile(source, ErrorKind::kData).size();
    if (!options_.holdout_source.empty()) {
      total_bytes_ += InputFile(options_.holdout_source, ErrorKind::kData).size();
      read_source(options_.holdout_source, true);
    }
    for (const std::string& source : sources) read_source(source, false);
    if (spool_->size() == 0) throw no_rows();
    rejects_->finish();
    spool_->finish();
    write_shards(directory);
    spool_->remove();
    return result_.index;
  }

  Error no_rows() const {
    std::string counts;
    for (const auto& [reason, n] : result_.index.rejects) counts += (counts.empty() ? "" : ", ") + reason + " " + std::to_string(n);
    const std::string where = options_.sources.empty() ? options_.holdout_source : options_.sources.front();
    if (result_.read_rows == 0) return Error(ErrorKind::kData, where + ": no rows found: expected JSONL or plain text");
    if (counts.empty()) return Error(ErrorKind::kData, where + ": all " + std::to_string(result_.read_rows) + " rows were left out by --skip");
    return Error(ErrorKind::kData, where + ": no row was accepted of " + std::to_string(result_.read_rows) + " (" + counts + "); first: " + first_reject_);
  }

  void read_source(const std::string& source, bool holdout) {
    const auto limit = static_cast<size_t>(options_.max_record_bytes);
    Container container = Container::kDocuments;
    if (options_.format != "plain") {
      container = detect_container(source, limit);
      if (container == Container::kDocuments && options_.format != "auto") container = Container::kLines;
    }
    RecordReader reader(source, container, options_.separator, limit);
    RawRecord raw;
    while (!(limit_reached() && !holdout) && reader.next(raw)) {
      if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal: nothing was written");
      ++result_.read_rows;
      with_context(source + ":" + std::to_string(raw.number), [&] { take(source, raw, container, holdout); });
      if (progress_ && result_.read_rows % 256 == 0)
        progress_({"ingest", static_cast<double>(done_bytes_ + reader.bytes_done()) / kMegabyte, static_cast<double>(total_bytes_) / kMegabyte, "MB",
                   std::to_string(spool_->size()) + " rows"});
    }
    result_.index.sources.emplace_back(fs::path(source).filename().string(), reader.finish_sha256());
    done_bytes_ += reader.size();
    if (progress_)
      progress_({"ingest", static_cast<double>(done_bytes_) / kMegabyte, static_cast<double>(total_bytes_) / kMegabyte, "MB",
                 std::to_string(spool_->size()) + " rows"});
  }

  bool limit_reached() const { return options_.limit > 0 && selected_ >= options_.skip + options_.limit; }

  void reject(const std::string& source, const RawRecord& raw, const Rejected& why) {
    ++result_.index.rejects[why.reason];
    Json line = {{"file", source}, {"line", raw.number}, {"reason", why.reason}, {"detail", why.detail}};
    rejects_->write(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    if (first_reject_.empty()) first_reject_ = source + ":" + std::to_string(raw.number) + ": " + why.reason + (why.detail.empty() ? "" : " (" + why.detail + ")");
  }

  void take(const std::string& source, const RawRecord& raw, Container container, bool holdout) {
    if (raw.too_long) return reject(source, raw, {"too_long", "more than " + std::to_string(options_.max_record_bytes) + " bytes"});
    ParsedRow parsed = container == Container::kDocuments ? parse_document(raw.text) : parse_row(raw.text, row_options_);
    if (auto* why = std::get_if<Rejected>(&parsed)) {
      if (raw.unterminated && container == Container::kLines && why->reason == "invalid_json") why->reason = "truncated_line";
      return reject(source, raw, *why);
    }
    TrafficRecord& record = std::get<TrafficRecord>(parsed);
    if (const int64_t n = content_characters(record); n < options_.min_chars) return reject(source, raw, {"too_short", std::to_string(n) + " characters"});
    RedactionCounts redactions;
    if (options_.redact) redact_record(record, redactions);
    const std::string digest = content_digest(record);
    if (options_.dedup && !seen_content_.insert(digest.substr(0, 32)).second) {
      ++result_.index.duplicates;
      return;
    }
    if (record.id.empty()) record.id = digest.substr(0, 16);
    if (record.conversation.empty()) record.conversation = record.id;
    if (!options_.domain.empty()) record.domain = options_.domain;

    std::variant<TokenisedRow, Rejected> tokenised = tokeniser_.tokenise(record);
    if (const auto* why = std::get_if<Rejected>(&tokenised)) return reject(source, raw, *why);
    TokenRow& row = std::get<TokenisedRow>(tokenised).row;
    const int64_t dropped = cut_row(row, options_.max_length);
    if (const auto why = check_learnable(row)) return reject(source, raw, *why);
    if (!holdout && selected_++ < options_.skip) {
      ++result_.skipped_rows;
      return;
    }
    accept(row, record.time, dropped, holdout);
    result_.unlearnt_turns += std::get<TokenisedRow>(tokenised).unlearnt_turns;
    for (const auto& [name, n] : redactions) result_.index.redactions[name] += n;
  }

  void accept(TokenRow& row, int64_t time, int64_t dropped, bool holdout) {
    result_.index.truncated_rows += dropped > 0;
    result_.index.dropped_tokens += dropped;
    for (const int32_t t : row.tokens) result_.index.vocab_size = std::max<int64_t>(result_.index.vocab_size, t + int64_t{1});
    // Ids are unique within the output: regenerate finds rows by them.
    if (const int64_t n = ++seen_ids_[row.id]; n > 1) {
      std::string unique = row.id + "#" + std::to_string(n);
      while (!seen_ids_.try_emplace(unique, 1).second) unique += "'";
      row.id = std::move(unique);
    }
    split_rows_.push_back({conversation_key(row.conversation), time, holdout});
    spool_->add(row);
  }

  void write_shards(const fs::path& directory) {
    const SplitResult split = split_rows(split_rows_, {options_.holdout, options_.holdout_count, options_.holdout_rule, options_.seed});
    result_.split_rule = split.rule;
    ShardWriter writer(directory);
    const bool shuffle = options_.order == "shuffle";
    const std::vector<size_t> order = shuffle ? shuffled_order(spool_->size(), options_.seed) : std::vector<size_t>{};
    for (size_t i = 0; i < spool_->size(); ++i) {
      if (split.holdout[i]) writer.add("holdout", spool_->read(i));
      if (const size_t r = shuffle ? order[i] : i; !split.holdout[r]) writer.add("train", spool_->read(r));
    }
    result_.index.shards = writer.finish();
  }

  const IngestOptions& options_;
  const ProgressFn& progress_;
  const RowTokeniser tokeniser_;
  RowOptions row_options_;
  IngestResult result_;
  std::unique_ptr<OutputFile> rejects_;
  std::unique_ptr<RowSpool> spool_;
  std::unordered_set<std::string> seen_content_;
  std::unordered_map<std::string, int64_t> seen_ids_;
  std::vector<SplitRow> split_rows_;
  std::string first_reject_;
  int64_t selected_ = 0;
  uint64_t total_bytes_ = 0, done_bytes_ = 0;
};

}  // namespace

IngestResult ingest(const IngestOptions& options, const ProgressFn& progress) {
  validate(options);
  require_replaceable(options.out);
  return Ingest(options, progress).run();
}

}  // namespace specdec::data
