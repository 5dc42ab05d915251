#include "net/hub.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/environment.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "net/hub_blob.h"

namespace specdec::net {

namespace {

constexpr size_t kMaxListing = 16u << 20, kMaxFiles = 100000;
constexpr uint64_t kMaxSmallFile = 256u << 20, kDiskReserve = 64u << 20;
const char kIndex[] = "model.safetensors.index.json", kWeights[] = "model.safetensors";

// The files of a model other than its weights. Specdec, or an engine that a package is made for, needs them to read
// tokenizers, templates and quantised checkpoints. specdec.json binds a published draft to its target.
const std::set<std::string> kSmallFiles = {"config.json",
                                           "generation_config.json",
                                           "tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "vocab.txt",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "quantize_config.json",
                                           "quant_config.json",
                                           "hf_quant_config.json",
                                           "specdec.json",
                                           kIndex};

bool is_true(const std::string& name) {
  std::string value = environment({name.c_str()});
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

double seconds_variable(const char* name, double fallback) {
  const std::string text = environment({name});
  if (text.empty()) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(value > 0 && value <= 86400))
    throw Error(ErrorKind::kUsage,
                std::string(name) + ": expected seconds above 0 and at most 86400, found '" + text.substr(0, 32) + "'");
  return value;
}

void read_token(HubOptions& options) {
  if (is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return;
  std::string token;
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
    if (token.empty()) token = environment({name}), options.token_source = name;
  if (token.empty()) {
    const std::string path = environment({"HF_TOKEN_PATH"});
    options.token_source = path.empty() ? (hub_home() / "token").string() : path;
    std::error_code ec;
    if (fs::exists(options.token_source, ec)) token = read_file(options.token_source, 65536, ErrorKind::kConfig);
  }
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!token.empty() && blank(token.back())) token.pop_back();
  token.erase(token.begin(), std::find_if_not(token.begin(), token.end(), blank));
  if (token.empty()) options.token_source.clear();
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 127; }))
    throw Error(ErrorKind::kConfig, options.token_source + ": expected a token of printable characters without spaces");
  // Disables core files, because they would contain the token and libcurl's copies of it.
  options.token = token;
  if (!options.token.empty()) ::prctl(PR_SET_DUMPABLE, 0);
}

bool is_shard_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.front() != '.' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

// Returns the shards that an index file names. Throws Error(kModel) for other names than safetensors files beside it.
std::set<std::string> shards_of(const fs::path& index) {
  std::set<std::string> shards;
  const Json json = read_json(index, ErrorKind::kModel, {kMaxSmallFile, 16});
  const std::string where = index.string();
  for (const auto& [tensor, shard] : json_object(json, "weight_map", 1000000, where, ErrorKind::kModel).items()) {
    if (!shard.is_string() || !is_shard_name(shard.get<std::string>()))
      throw Error(ErrorKind::kModel, where + ": weight_map: expected names of safetensors files beside it");
    shards.insert(shard.get<std::string>());
  }
  return shards;
}

bool has_file(const fs::path& directory, const std::string& name) {
  std::error_code ec;
  return fs::is_regular_file(directory / name, ec);
}

// Returns whether a snapshot has weights and tokenizer, without asking the hub for its list of files. The check is
// needed because another program may have filled the snapshot with only a part of the files.
bool is_complete(const HubSnapshot& snapshot) {
  const fs::path& d = snapshot.directory;
  if (!has_file(d, "config.json") ||
      !(has_file(d, "tokenizer.json") ||
        has_file(d.parent_path().parent_path() / ".no_exist" / snapshot.commit, "tokenizer.json")))
    return false;
  if (has_file(d, kWeights)) return true;
  if (!has_file(d, kIndex)) return false;
  const auto shards = shards_of(d / kIndex);
  return std::all_of(shards.begin(), shards.end(), [&](const std::string& name) { return has_file(d, name); });
}

class Fetch {
 public:
  Fetch(const HubName& hub, const HubOptions& options, const ProgressFn& progress)
      : hub_(hub),
        options_(options),
        progress_(progress),
        source_(hub, options),
        repository_(hub_repository(hub)),
        where_(options.endpoint + "/" + hub.repository()) {}

  HubSnapshot run() {
    const auto cached = find_snapshot(hub_);
    // A revision that is a commit never changes, so no request is needed.
    if (cached && is_complete(*cached) && cached->commit.starts_with(hub_.revision)) return *cached;
    try {
      ask(cached && is_complete(*cached) ? 2 : options_.backoff.max_attempts);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kNetwork || stop_requested() || !cached || !is_complete(*cached)) throw;
      log(LogLevel::kWarn, std::string(e.what()) + ": using " + hub_.text() +
                               " as it was when last asked for (commit " + cached->commit.substr(0, 12) + ")");
      return *cached;
    }
    const HubSnapshot snapshot{repository_ / "snapshots" / commit_, commit_};
    if (!has_all(snapshot.directory)) download(snapshot.directory);
    write_ref();
    return snapshot;
  }

 private:
  // Asks the hub for the commit and the list of its files.
  void ask(int max_attempts) {
    if (progress_) progress_({"asking the hub", 0, 0, "", where_});
    const std::string path = "/api/models/" + hub_.repository() + "/revision/" + percent_encoded(hub_.revision, false);
    const HttpReply reply = source_.ask(path, false, max_attempts);
    const std::string where = options_.endpoint + path;
    const Json info = parse_json(reply.body, where, ErrorKind::kModel, {kMaxListing, 32});
    commit_ = json_string(info, "sha", where, ErrorKind::kModel);
    if (!is_commit(commit_))
      throw Error(ErrorKind::kModel,
                  where + ": sha: expected a commit of 40 hexadecimal digits, found '" + commit_.substr(0, 64) + "'");
    for (const Json& file : json_array(info, "siblings", kMaxFiles, where, ErrorKind::kModel)) {
      const std::string name = json_string(file, "rfilename", where + ": siblings", ErrorKind::kModel);
      require_harmless(name, where);
      if (is_model_file(name)) listed_.insert(name);
    }
    if (!listed_.count("config.json"))
      throw Error(ErrorKind::kModel, where_ + ": has no config.json: no model that specdec reads");
    if (!listed_.count(kWeights) && !listed_.count(kIndex))
      throw Error(ErrorKind::kModel, where_ + ": has no model.safetensors and no " + kIndex +
                                         ": other formats, pickle above all, are not read");
  }

  // Returns the names of the weight files: model.safetensors if there is one, else the shards that the index names.
  std::vector<std::string> weights(const fs::path& index) const {
    if (listed_.count(kWeights)) return {kWeights};
    std::vector<std::string> names;
    for (const std::string& shard : shards_of(index)) {
      if (!listed_.count(shard))
        throw Error(ErrorKind::kModel,
                    where_ + ": " + kIndex + " names " + shard + ", which the repository does not have");
      names.push_back(shard);
    }
    return names;
  }
  std::vector<std::string> small_files() const {
    std::vector<std::string> names;
    for (const std::string& name : listed_)
      if (kSmallFiles.count(name) && (name != kIndex || !listed_.count(kWeights))) names.push_back(name);
    return names;
  }

  bool has_all(const fs::path& snapshot) const {
    const auto there = [&](const std::string& name) { return has_file(snapshot, name); };
    const auto small = small_files();
    if (!std::all_of(small.begin(), small.end(), there)) return false;
    const auto large = weights(snapshot / kIndex);
    return std::all_of(large.begin(), large.end(), there);
  }

  // Downloads the files. Links config.json last, so a snapshot that has a config.json is complete.
  void download(const fs::path& snapshot) {
    make_directories(snapshot);
    make_directories(repository_ / "blobs");
    std::vector<RemoteFile> small;
    for (const std::string& name : small_files()) {
      small.push_back(source_.describe(commit_, name));
      if (small.back().size > kMaxSmallFile)
        throw Error(ErrorKind::kModel, where_ + ": " + name + ": " + std::to_string(small.back().size) +
                                           " bytes, the limit is " + std::to_string(kMaxSmallFile));
    }
    get_all(small);
    for (const RemoteFile& file : small)
      if (file.name != "config.json") link(snapshot, file);
    const auto index =
        std::find_if(small.begin(), small.end(), [](const RemoteFile& file) { return file.name == kIndex; });
    std::vector<RemoteFile> large;
    for (const std::string& name : weights(index == small.end() ? fs::path() : repository_ / "blobs" / index->etag))
      large.push_back(source_.describe(commit_, name));
    get_all(large);
    for (const RemoteFile& file : large) link(snapshot, file);
    remember_absent();
    for (const RemoteFile& file : small)
      if (file.name == "config.json") link(snapshot, file);
  }

  void get_all(const std::vector<RemoteFile>& files) {
    double total = 0, done = 0;
    std::map<std::string, uint64_t> missing;  // size by etag, because two names may share one blob
    for (const RemoteFile& file : files)
      if (!has_blob(repository_, file)) missing[file.etag] = file.size;
    for (const auto& [etag, size] : missing) total += static_cast<double>(size);
    const double free = static_cast<double>(free_disk_bytes(repository_));
    if (total + static_cast<double>(kDiskReserve) > free)
      throw Error(ErrorKind::kIo, hub_.text() + ": " + mebibytes(total) + " to download, " + mebibytes(free) +
                                      " free in " + repository_.string() + ": free some space or set HF_HUB_CACHE");
    for (const RemoteFile& file : files) {
      if (!missing.erase(file.etag)) continue;
      fetch_blob(repository_, file, source_, [&](uint64_t bytes) {
        if (progress_)
          progress_({"download", (done + static_cast<double>(bytes)) / 1048576, total / 1048576, "MiB",
                     hub_.text() + " " + file.name});
      });
      done += static_cast<double>(file.size);
    }
  }

  static std::string mebibytes(double bytes) { return std::to_string(static_cast<uint64_t>(bytes / 1048576)) + " MiB"; }

  void link(const fs::path& snapshot, const RemoteFile& file) const {
    write_link_atomic(snapshot / file.name, fs::path("../../blobs") / file.etag);
  }

  // Fills huggingface_hub's negative cache, so that other programs do not ask again for files that this commit lacks.
  void remember_absent() const {
    const fs::path absent = repository_ / ".no_exist" / commit_;
    for (const std::string& name : kSmallFiles) {
      if (listed_.count(name) || has_file(absent, name)) continue;
      make_directories(absent);
      OutputFile(absent / name).finish();
    }
  }

  void write_ref() const {
    if (hub_.revision == commit_) return;
    const fs::path ref = repository_ / "refs" / hub_.revision;
    if (has_file(ref.parent_path(), ref.filename()) && read_file(ref, 4096, ErrorKind::kModel) == commit_) return;
    make_directories(ref.parent_path());
    remove_partials(ref.parent_path(), 3600);  // files of killed runs, which huggingface_hub would take for refs
    write_file_atomic(ref, commit_);
  }

  const HubName& hub_;
  const HubOptions& options_;
  const ProgressFn& progress_;
  HubSource source_;
  const fs::path repository_;
  const std::string where_;
  std::string commit_;
  std::set<std::string> listed_;
};

}  // namespace

bool is_model_file(const std::string& name) { return kSmallFiles.count(name) != 0 || is_shard_name(name); }

HubOptions hub_options_from_environment() {
  HubOptions options;
  if (const std::string endpoint = environment({"HF_ENDPOINT"}); !endpoint.empty()) options.endpoint = endpoint;
  options.endpoint = base_url(options.endpoint, "HF_ENDPOINT", "HF_TOKEN");
  options.offline =
      is_true("HF_HUB_OFFLINE") || (environment({"HF_HUB_OFFLINE"}).empty() && is_true("TRANSFORMERS_OFFLINE"));
  options.metadata_timeout_s = seconds_variable("HF_HUB_ETAG_TIMEOUT", options.metadata_timeout_s);
  options.stall_timeout_s = seconds_variable("HF_HUB_DOWNLOAD_TIMEOUT", options.stall_timeout_s);
  read_token(options);
  return options;
}

HubSnapshot fetch_model(const HubName& hub, const HubOptions& options, const ProgressFn& progress) {
  if (options.offline) return with_context("offline (HF_HUB_OFFLINE)", [&] { return cached_snapshot(hub); });
  const PublicFiles as_huggingface_hub_does;
  return Fetch(hub, options, progress).run();
}

}  // namespace specdec::net
