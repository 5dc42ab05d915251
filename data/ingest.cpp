#include "data/ingest.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "base/file.h"
#include "base/fingerprint.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "base/sha256.h"
#include "base/version.h"
#include "data/formats/batch_join.h"
#include "data/formats/row_json.h"
#include "data/formats/row_parser.h"
#include "data/redact/id_key.h"
#include "data/redact/redact.h"
#include "data/select/domain_clusters.h"
#include "data/select/domain_rules.h"
#include "data/select/duplicates.h"
#include "data/select/selection.h"
#include "data/select/split.h"
#include "data/shards/record_line.h"
#include "data/shards/row_spool.h"
#include "data/shards/shard_writer.h"
#include "data/sources/record_reader.h"
#include "data/sources/sources.h"
#include "data/tokenise.h"

namespace specdec::data {

namespace {

constexpr double kMegabyte = 1e6;
constexpr int64_t kProgressRecords = 256;
constexpr size_t kLargestTenants = 20;
constexpr const char kPlainTextRefused[] =
    "plain text, which is not learnt unasked beside other sources, or from a file that is not named .txt or .md: give "
    "such files alone with --format plain, or leave them out";

// Returns the fingerprint of the target. Ingest does not need weights: a directory with only a tokenizer gives an id
// that no target has.
std::string ingest_target_id(const fs::path& target) {
  return has_weights(target) ? fingerprint_model(target).id : std::string(64, '0');
}

// Returns the one format of all rows, or null if the format of each row is to be recognised.
const TrafficFormat* format_of(const IngestOptions& options) {
  if (!options.map.empty()) return &mapped_format();
  return options.format == "plain" ? nullptr : parse_format_name(options.format);
}

// Computes the tags of a row (the index of its domain and the hash of its tenant) and counts the rows of each tenant.
class TagTable {
 public:
  RowTags add(const std::string& tenant, const std::string& domain, bool holdout) {
    if (!tenant.empty()) ++tenants_[tenant];
    const auto [at, is_new] = domain_index_.try_emplace(domain, static_cast<uint32_t>(domains_.size()));
    if (is_new) domains_.push_back(domain);
    return {tenant.empty() ? 0 : hash_key(tenant), at->second, holdout};
  }
  uint32_t domain_index(const std::string& domain) { return add("", domain, false).domain; }
  const std::vector<std::string>& domains() const { return domains_; }
  void report(IngestReport& report, const IdKey& key) const {
    report.tenants = static_cast<int64_t>(tenants_.size());
    std::vector<std::pair<std::string, int64_t>> all;
    for (const auto& [name, n] : tenants_) all.emplace_back(key.tenant(name), n);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return std::pair(-a.second, a.first) < std::pair(-b.second, b.first);
    });
    all.resize(std::min(all.size(), kLargestTenants));
    report.largest_tenants = {all.begin(), all.end()};
  }

 private:
  std::unordered_map<std::string, int64_t> tenants_;
  std::unordered_map<std::string, uint32_t> domain_index_;
  std::vector<std::string> domains_;
};

class Ingest {
 public:
  Ingest(const IngestOptions& options, const IdKey& key, const ProgressFn& progress)
      : options_(options), progress_(progress), key_(key) {
    if (!options.records) tokeniser_.emplace(options.target);
    if (!options.domain_rules.empty()) rules_.emplace(options.domain_rules);
    row_options_ = {.format = format_of(options),
                    .domain_field = options.domain_field,
                    .tenant_field = options.tenant_field,
                    .instructions_as_chat = !tokeniser_ || tokeniser_->has_chat_template(),
                    .map = parse_field_map(options.map)};
    ShardIndex& index = result_.index;
    if (tokeniser_) {
      index.tokenizer_digest = tokenizer_digest(options.target);
      index.target_id = ingest_target_id(options.target);
      index.vocab_size = tokeniser_->tokenizer().vocab_size();
    }
    index.written_by = options.written_by;
    index.max_length = options.max_length;
    index.tool_version = kToolVersion;
  }

  IngestResult run() {
    if (options_.records)
      publish_data(options_.out, [this](const fs::path& directory) { fill_records(directory); });
    else
      publish_shards(options_.out, [this](const fs::path& directory) { return fill_shards(directory); });
    return std::move(result_);
  }

 private:
  struct Place {
    RowPlace row;
    bool holdout = false;
  };

  ShardIndex fill_shards(const fs::path& directory) {
    spool_ = std::make_unique<RowSpool>(directory / "spool");
    read_all(directory);
    spool_->finish();
    write_shards(directory);
    spool_->remove();
    finish_report(directory);
    return result_.index;
  }

  void fill_records(const fs::path& directory) {
    records_ = std::make_unique<OutputFile>(directory / "records.jsonl");
    read_all(directory);
    records_->finish();
    finish_report(directory);
  }

  void finish_report(const fs::path& directory) {
    IngestReport& report = result_.report;
    ShardIndex& index = result_.index;
    tags_.report(report, key_);
    index.rejects = report.rejects;
    index.redactions = report.redactions;
    index.duplicates = report.duplicates + report.near_duplicates;
    report.validate(kIngestReportFile);
    write_file_atomic(directory / kIngestReportFile, to_json(report).dump(1) + "\n");
  }

  void read_all(const fs::path& directory) {
    rejects_ = std::make_unique<OutputFile>(directory / "rejects.jsonl");
    duplicates_ = std::make_unique<Duplicates>(directory, options_.dedup, options_.near_duplicates);
    batch_ = std::make_unique<BatchJoin>(directory);
    if (options_.domain_clusters)
      clusters_ = std::make_unique<DomainClusters>(directory, options_.domain_clusters, options_.seed);
    const std::vector<std::string> sources = expand_sources(options_.sources);
    const auto size_of = [](const std::string& source) {
      return source == kStandardInput ? 0 : InputFile(source, ErrorKind::kData).size();
    };
    for (const std::string& source : sources) total_bytes_ += size_of(source);
    plain_text_ = options_.format == "plain" || (are_plain_text(sources) && are_plain_text(holdout_sources()));
    if (!options_.holdout_source.empty()) {
      total_bytes_ += size_of(options_.holdout_source);
      read_source(options_.holdout_source, true);
    }
    for (const std::string& source : sources) read_source(source, false);
    batch_->refuse_waiting([this](const RowPlace& place, const Rejected& why) {
      count_record(place, "openai-batch");
      reject({place, false}, why);
    });
    if (result_.report.accepted == 0) throw nothing_accepted();
    rejects_->finish();
    batch_.reset();
    duplicates_.reset();
    seen_ids_ = KeySet();
  }

  Error nothing_accepted() const {
    const IngestReport& r = result_.report;
    std::string counts;
    for (const auto& [reason, n] : r.rejects) counts += (counts.empty() ? "" : ", ") + reason + " " + std::to_string(n);
    const std::string where = options_.sources.empty() ? options_.holdout_source : options_.sources.front();
    if (r.records == 0)
      return Error(ErrorKind::kData, where + ": no rows found: expected JSON, JSONL, CSV, TSV, Parquet or plain text");
    if (counts.empty())
      return Error(ErrorKind::kData, where + ": all " + std::to_string(r.records) + " rows were left out by --skip");
    // If the first rejected row has an unknown format, its detail already contains the suggested --map.
    const bool shown = first_reject_.find(result_.suggestion) != std::string::npos;
    return Error(ErrorKind::kData, where + ": no row was accepted of " + std::to_string(r.records) + " (" + counts +
                                       "); first: " + first_reject_ +
                                       (shown ? "" : "; unknown_format: " + result_.suggestion));
  }

  std::vector<std::string> holdout_sources() const {
    return options_.holdout_source.empty() ? std::vector<std::string>{} : std::vector{options_.holdout_source};
  }

  // Counts a source, or the unread rest of a source, as one rejected row, and logs a warning.
  void refuse_source(const Place& place, const Rejected& why) {
    count_record(place.row, "unknown");
    reject(place, why);
    log(LogLevel::kWarn, source_names_[place.row.source] + ": " + why.detail);
  }

  void read_source(const std::string& source, bool holdout) {
    ReaderOptions reading;
    reading.separator = options_.separator;
    reading.max_record_bytes = static_cast<size_t>(options_.max_record_bytes);
    if (options_.format == "plain") reading.container = Container::kDocuments;
    reading.may_be_documents = options_.format == "auto" && options_.map.empty();
    RecordReader reader(source, reading);
    result_.report.sources.push_back(
        {source == kStandardInput ? source : fs::path(source).filename().string(), 0, 0, 0, {}});
    source_names_.push_back(source);
    const auto show = [&](bool at_end) {
      // The size of standard input is unknown, so total_bytes_ may be too small.
      const uint64_t total = std::max(total_bytes_, done_bytes_ + reader.stored_done());
      // The reader reads ahead, so 100 % is shown only at the end.
      const uint64_t done = std::min(done_bytes_ + reader.stored_done(), at_end || total == 0 ? total : total - 1);
      if (progress_)
        progress_({"ingest", static_cast<double>(done) / kMegabyte, static_cast<double>(total) / kMegabyte, "MB",
                   std::to_string(result_.report.accepted) + " rows"});
    };
    show(false);
    RawRecord raw;
    int64_t number = 0;
    for (int64_t read = 1; !(limit_reached() && !holdout) && reader.next(raw); ++read) {
      if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal: nothing was written");
      number = raw.number;
      const Place place{{static_cast<uint32_t>(source_names_.size() - 1), number}, holdout};
      if (reader.container() == Container::kDocuments && !plain_text_) {
        refuse_source(place, {"plain_text", kPlainTextRefused});
        break;
      }
      with_context(source + ":" + std::to_string(raw.number), [&] { take(raw, reader.container(), place); });
      if (read % kProgressRecords == 0) show(false);
    }
    if (reader.is_cut())
      refuse_source({{static_cast<uint32_t>(source_names_.size() - 1), number + 1}, holdout},
                    {"truncated_source",
                     "the compressed data end in the middle: the rows before are kept; copy the file "
                     "again, or leave it out while it is being written"});
    result_.index.sources.emplace_back(result_.report.sources.back().file, reader.finish_sha256());
    show(true);
    done_bytes_ += reader.stored_done();
  }

  bool limit_reached() const { return options_.limit > 0 && selected_ >= options_.skip + options_.limit; }

  void count_record(const RowPlace& place, const char* format) {
    SourceCounts& source = result_.report.sources[place.source];
    ++source.records;
    ++source.formats[format];
    ++result_.report.records;
  }

  void reject(const Place& place, const Rejected& why) {
    const std::string& file = source_names_[place.row.source];
    const int64_t number = ++result_.report.rejects[why.reason];
    ++result_.report.sources[place.row.source].rejected;
    const Json line = {{"file", file}, {"line", place.row.number}, {"reason", why.reason}, {"detail", why.detail}};
    if (number <= kMostRejectLines) rejects_->write(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    if (why.reason == "unknown_format" && result_.suggestion.empty()) result_.suggestion = why.detail;
    if (first_reject_.empty())
      first_reject_ = file + ":" + std::to_string(place.row.number) + ": " + why.reason +
                      (why.detail.empty() ? "" : " (" + why.detail + ")");
  }

  void take(const RawRecord& raw, Container container, const Place& place) {
    ParsedLine line;
    if (raw.too_long)
      line.rows.push_back(Rejected{"too_long", "more than " + std::to_string(options_.max_record_bytes) + " bytes"});
    else if (container == Container::kDocuments)
      line.rows.push_back(parse_document(raw.text));
    else
      line = parse_line(raw.text, row_options_);
    const char* format = container == Container::kDocuments ? "plain" : line.format ? line.format->name : "unknown";
    for (ParsedRow& row : line.rows) {
      if (const auto* half = std::get_if<BatchHalf>(&row)) {
        std::optional<ParsedRow> joined = batch_->add(*half, raw.text, place.row, row_options_);
        if (!joined) continue;
        row = std::move(*joined);
      }
      count_record(place.row, format);
      if (auto* why = std::get_if<Rejected>(&row)) {
        if (raw.unterminated && container == Container::kLines && why->reason == "invalid_json")
          why->reason = "truncated_line";
        reject(place, *why);
      } else {
        take_record(std::get<ParsedRecord>(row), format, place);
      }
    }
  }

  void take_record(ParsedRecord& parsed, const char* format, const Place& place) {
    TrafficRecord& record = parsed.record;
    IngestReport& report = result_.report;
    if (const int64_t n = options_.min_chars ? content_characters(record) : 0; n < options_.min_chars)
      return reject(place, {"too_short", std::to_string(n) + " characters"});
    // The split uses the conversation's name from before redaction, so that it does not depend on the salt.
    const std::string conversation = record.conversation.empty() ? record.id : record.conversation;
    RedactionCounts redactions;
    try {
      if (options_.redact) redact_record(record, key_, redactions);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kData) throw;
      return reject(place,
                    {"unsupported_tool_calls", "tools or tool_calls: more than " + std::to_string(kMaxOrderedBytes) +
                                                   " bytes after redaction, or no JSON"});
    }
    collapse_content(record, collapsed_);
    if (const auto verdict = duplicates_->look_up(record, collapsed_); verdict != Duplicates::Verdict::kNew) {
      ++(verdict == Duplicates::Verdict::kEqual ? report.duplicates : report.near_duplicates);
      return;
    }
    const std::string content = record.id.empty() ? sha256_hex(collapsed_).substr(0, 16) : "";
    if (record.id.empty()) record.id = key_.digest("content", content);
    if (record.conversation.empty()) record.conversation = record.id;
    split_key_ = conversation_key(conversation.empty() ? content : conversation);
    if (!options_.domain.empty())
      record.domain = options_.domain;
    else if (record.domain.empty() && rules_)
      record.domain = rules_->tag(record);

    std::optional<TokenisedRow> tokenised;
    int64_t dropped = 0;
    if (tokeniser_) {
      std::variant<TokenisedRow, Rejected> made = tokeniser_->tokenise(record);
      if (const auto* why = std::get_if<Rejected>(&made)) return reject(place, *why);
      tokenised = std::move(std::get<TokenisedRow>(made));
      if (options_.learn == "last" && !record.messages.empty()) learn_last_answer(*tokenised);
      dropped = cut_row(tokenised->row, options_.max_length);
      if (const auto why = check_learnable(tokenised->row)) return reject(place, *why);
    }
    if (!place.holdout && selected_++ < options_.skip) {
      ++report.skipped;
      return;
    }
    make_unique(record.id);
    if (tokenised) {
      tokenised->row.id = record.id;
      accept_row(*tokenised, record.time, dropped, place.holdout);
    } else {
      write_record(parsed, format, redactions, place);
    }
    const RowTags tags = tags_.add(parsed.tenant, record.domain, place.holdout);
    if (tokenised && clusters_ && record.domain.empty()) {
      clusters_->add(record);
      clustered_rows_.push_back(static_cast<uint32_t>(row_tags_.size()));
    }
    if (tokenised) row_tags_.push_back(tags);
    ++report.accepted;
    ++report.sources[place.row.source].accepted;
    ++report.writers[record.writer];
    report.redacted_records += !redactions.empty();
    for (const auto& [name, n] : redactions) report.redactions[name] += n;
  }

  // Makes ids unique within the output, because regenerate finds rows by their ids.
  void make_unique(std::string& id) {
    if (seen_ids_.insert(hash_key(id))) return;
    int64_t& n = repeated_ids_.try_emplace(id, 1).first->second;
    std::string unique;
    do unique = id + "#" + std::to_string(++n);
    while (!seen_ids_.insert(hash_key(unique)));
    id = std::move(unique);
  }

  void accept_row(const TokenisedRow& tokenised, int64_t time, int64_t dropped, bool holdout) {
    ShardIndex& index = result_.index;
    index.truncated_rows += dropped > 0;
    index.dropped_tokens += dropped;
    for (const int32_t t : tokenised.row.tokens) index.vocab_size = std::max<int64_t>(index.vocab_size, t + int64_t{1});
    result_.unlearnt_turns += tokenised.unlearnt_turns;
    split_rows_.push_back({split_key_, time, holdout});
    spool_->add(tokenised.row);
  }

  void write_record(const ParsedRecord& parsed, const char* format, const RedactionCounts& redactions,
                    const Place& place) {
    write_record_line(parsed.record,
                      {format, result_.report.sources[place.row.source].file, place.row.number,
                       tenant_name(parsed.tenant), &redactions},
                      line_);
    line_ += '\n';
    records_->write(line_);
  }

  const std::string& tenant_name(const std::string& tenant) {
    const auto [at, is_new] = tenant_names_.try_emplace(tenant);
    if (is_new) at->second = key_.tenant(tenant);
    return at->second;
  }

  void tag_clusters() {
    const std::vector<uint8_t> found = clusters_->assign();
    for (size_t i = 0; i < found.size(); ++i)
      row_tags_[clustered_rows_[i]].domain = tags_.domain_index(DomainClusters::name(found[i]));
    clusters_.reset();
  }

  TokenRow tagged_row(size_t index) const {
    TokenRow row = spool_->read(index);
    row.domain = tags_.domains()[row_tags_[index].domain];
    return row;
  }

  void count_conversations(const std::vector<bool>& holdout) {
    std::unordered_set<uint64_t> all, held_out;
    for (size_t i = 0; i < split_rows_.size(); ++i) {
      all.insert(split_rows_[i].conversation);
      if (holdout[i]) held_out.insert(split_rows_[i].conversation);
    }
    result_.conversations = static_cast<int64_t>(all.size());
    result_.held_out_conversations = static_cast<int64_t>(held_out.size());
  }

  void write_shards(const fs::path& directory) {
    const SplitResult split =
        split_rows(split_rows_, {options_.holdout, options_.holdout_count, options_.holdout_rule, options_.seed});
    result_.split_rule = split.rule;
    count_conversations(split.holdout);
    for (size_t i = 0; i < row_tags_.size(); ++i) row_tags_[i].holdout = split.holdout[i];
    if (clusters_) tag_clusters();
    const Selection selection =
        select_rows(row_tags_, tags_.domains(), {options_.tenant_cap, parse_mix(options_.mix), options_.seed});
    result_.report.capped = selection.capped;
    result_.report.thinned = selection.thinned;
    ShardWriter writer(directory);
    const bool shuffle = options_.order == "shuffle";
    const std::vector<size_t> order = shuffle ? shuffled_order(spool_->size(), options_.seed) : std::vector<size_t>{};
    const auto rows = static_cast<double>(spool_->size());
    for (size_t i = 0; i < spool_->size(); ++i) {
      if (progress_ && i % kProgressRecords == 0) progress_({"write shards", static_cast<double>(i), rows, "rows", ""});
      if (split.holdout[i]) writer.add("holdout", tagged_row(i));
      if (const size_t r = shuffle ? order[i] : i; !split.holdout[r] && selection.kept[r])
        writer.add("train", tagged_row(r));
    }
    result_.index.shards = writer.finish();
    if (progress_) progress_({"write shards", rows, rows, "rows", ""});
  }

  const IngestOptions& options_;
  const ProgressFn& progress_;
  const IdKey& key_;
  std::optional<RowTokeniser> tokeniser_;
  std::optional<DomainRules> rules_;
  RowOptions row_options_;
  IngestResult result_;
  std::unique_ptr<OutputFile> rejects_, records_;
  std::unique_ptr<RowSpool> spool_;
  std::unique_ptr<Duplicates> duplicates_;
  std::unique_ptr<BatchJoin> batch_;
  std::unique_ptr<DomainClusters> clusters_;
  std::vector<uint32_t> clustered_rows_;   // row_tags_ index of each row that was added to clusters_
  std::vector<std::string> source_names_;  // as given on the command line
  KeySet seen_ids_;
  std::unordered_map<std::string, int64_t> repeated_ids_;
  std::vector<SplitRow> split_rows_;
  std::vector<RowTags> row_tags_;
  TagTable tags_;
  std::unordered_map<std::string, std::string> tenant_names_;  // tenant → its name in the outputs
  std::string first_reject_, collapsed_, line_;
  bool plain_text_ = false;  // true: sources without JSON are read as documents to learn
  int64_t selected_ = 0;
  uint64_t split_key_ = 0;  // hash of the current record's conversation
  uint64_t total_bytes_ = 0, done_bytes_ = 0;
};

}  // namespace

IngestResult ingest(const IngestOptions& options, const ProgressFn& progress) {
  validate(options);
  require_replaceable(options.out);
  HeldSalt salt(options.salt.empty() ? salt_file(options.out) : fs::path(options.salt));
  try {
    IngestResult result = Ingest(options, salt.key(), progress).run();
    salt.keep();
    return result;
  } catch (...) {
    // Removes the salt file that this run made if options.out does not exist: no published data then depends on the
    // salt.
    std::error_code none;
    if (options.salt.empty() && !fs::exists(options.out, none)) salt.give_up();
    throw;
  }
}

}  // namespace specdec::data
