#include "distill/train/checkpoint.h"

#include <algorithm>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "base/sha256.h"

namespace specdec::distill {

namespace {

constexpr const char* kFiles[] = {"config.json", "model.safetensors", "optimizer.safetensors"};

std::string directory_name(int64_t step) { return format("step-%08lld", static_cast<long long>(step)); }

void write_optimizer(const fs::path& path, const AdamW& optimizer) {
  SafetensorsWriter writer(path, optimizer.layout());
  optimizer.visit_state([&](const at::Tensor& piece) {
    const at::Tensor solid = piece.contiguous();
    writer.write({static_cast<const std::byte*>(solid.const_data_ptr()), solid.nbytes()});
  });
  writer.finish();
}

at::Tensor read_fp32(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry& entry = file.tensors().at(name);
  if (entry.dtype != "F32")
    throw Error(ErrorKind::kData, file.file().path().string() + ": " + name + ": expected F32, found " + entry.dtype);
  at::Tensor out = at::empty(entry.shape, at::kFloat);
  file.read(entry, {static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()});
  return out;
}

// Reads a checkpoint into `out`. Returns the reason if the checkpoint cannot be used, else "".
std::string damage(const fs::path& directory, Checkpoint& out) {
  try {
    const fs::path file = directory / "state.json";
    Json all = read_json(file);
    require_schema(all, "checkpoint", CheckpointStore::kVersion, file.string());
    const std::string digest = json_string(all, "digest", file.string(), ErrorKind::kData);
    all.erase("digest");
    if (sha256_hex(canonical_json(all)) != digest) return "state.json does not have the digest it names";
    for (const char* name : kFiles) {
      if (!all.contains("files") || !all["files"].contains(name))
        return std::string("state.json does not name ") + name;
      if (sha256_file(directory / name) != all["files"][name])
        return std::string(name) + " does not have the digest state.json names";
    }
    out.step = json_int(all, "step", {0, INT64_MAX}, file.string(), ErrorKind::kData);
    out.directory = directory;
    out.state = all.at("state");
    return "";
  } catch (const Error& e) {
    // A read error does not mean that the checkpoint is damaged. It is rethrown, because going on with an older
    // checkpoint would be wrong.
    if (e.kind() == ErrorKind::kIo) throw;
    return e.what();
  } catch (const Json::exception& e) {
    return e.what();
  }
}

}  // namespace

CheckpointStore::CheckpointStore(std::filesystem::path directory) : directory_(std::move(directory)) {
  make_directories(directory_);
  remove_partials(directory_, 0);
}

std::vector<int64_t> CheckpointStore::steps() const {
  std::vector<int64_t> out;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    long long step = 0;
    int end = 0;
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "step-%lld%n", &step, &end) == 1 && static_cast<size_t>(end) == name.size())
      out.push_back(step);
  }
  std::sort(out.begin(), out.end());
  return out;
}

void CheckpointStore::save(int64_t step, int64_t best_step, const TrainedDraft& draft, const AdamW& optimizer,
                           const Json& state) {
  const std::string name = directory_name(step);
  replace_directory(directory_ / name, [&](const fs::path& tmp) {
    draft.write(tmp);
    write_optimizer(tmp / "optimizer.safetensors", optimizer);
    Json all = {{"schema", "specdec.checkpoint/1"}, {"step", step}, {"state", state}, {"files", Json::object()}};
    for (const char* file : kFiles) all["files"][file] = sha256_file(tmp / file);
    all["digest"] = sha256_hex(canonical_json(all));
    write_file_atomic(tmp / "state.json", all.dump(1) + "\n");
  });
  write_file_atomic(directory_ / "latest", name + "\n");
  const std::vector<int64_t> all = steps();
  for (size_t i = 0; i + kKeep < all.size(); ++i)
    if (all[i] != best_step && all[i] != step) remove_tree(directory_ / directory_name(all[i]));
}

std::optional<Checkpoint> CheckpointStore::open(int64_t step) const {
  Checkpoint out;
  const std::string why = damage(directory_ / directory_name(step), out);
  if (!why.empty()) {
    log(LogLevel::kWarn, (directory_ / directory_name(step)).string() + ": not used: " + why);
    return std::nullopt;
  }
  return out;
}

std::optional<Checkpoint> CheckpointStore::newest_good() const {
  std::vector<int64_t> candidates = steps();
  if (candidates.empty()) return std::nullopt;
  for (auto it = candidates.rbegin(); it != candidates.rend(); ++it)
    if (auto found = open(*it)) return found;
  throw Error(ErrorKind::kData, directory_.string() + ": none of the " + std::to_string(candidates.size()) +
                                    " checkpoints is whole; start again with another --out");
}

void CheckpointStore::restore(const Checkpoint& checkpoint, const TrainedDraft& draft) {
  draft.read(checkpoint.directory);
}

void CheckpointStore::restore(const Checkpoint& checkpoint, AdamW& optimizer) {
  if (checkpoint.directory.empty()) return optimizer.load({}, {});
  const SafetensorsFile file(checkpoint.directory / "optimizer.safetensors");
  std::vector<std::string> names;
  for (const auto& [name, entry] : file.tensors()) names.push_back(name);
  optimizer.load(names, [&](const std::string& name) { return read_fp32(file, name); });
}

}  // namespace specdec::distill
