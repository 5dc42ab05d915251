#include "base/schema/binding.h"

#include "base/file.h"
#include "base/shell.h"

namespace specdec {

namespace {

int64_t vocab_size(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  return json_int(read_json(file, ErrorKind::kModel), "vocab_size", {1, 1 << 24}, file.string(), ErrorKind::kModel);
}

void require_same_vocabulary(const fs::path& target, const fs::path& draft) {
  const int64_t ours = vocab_size(draft), theirs = vocab_size(target);
  if (ours != theirs)
    throw Error(ErrorKind::kModel, draft.string() + ": config.json: vocab_size " + std::to_string(ours) +
                                       ", the target has " + std::to_string(theirs) +
                                       ": a draft needs the target's vocabulary");
  constexpr size_t kMaxBytes = 256u << 20;
  if (read_file(draft / "tokenizer.json", kMaxBytes, ErrorKind::kModel) !=
      read_file(target / "tokenizer.json", kMaxBytes, ErrorKind::kModel))
    throw Error(ErrorKind::kModel,
                (draft / "tokenizer.json").string() +
                    ": differs from the target's: a draft needs the target's tokenizer, byte for byte");
}

// Throws if the two arguments were exchanged: the target's specdec.json says that it is a draft for the other model.
void refuse_exchanged(const fs::path& target, const fs::path& draft) {
  const auto binding = read_binding(target);
  if (!binding || binding->target != fingerprint_model(draft)) return;
  throw Error(ErrorKind::kUsage, target.string() + ": was made as a draft for " + draft.string() + ": exchange them: " +
                                     shell_words({"--target", draft.string(), "--draft", target.string()}));
}

}  // namespace

void visit_fields(Fields& f, DraftBinding& binding) {
  f.schema("draft", DraftBinding::kVersion);
  f("target", binding.target);
  f("kind", binding.kind);
  if (f.reads() && binding.kind.empty()) f.refuse("kind: missing");
  f(defaulted("loss"), binding.loss);
  f.json(defaulted("training"), binding.training);
}

Json to_json(const DraftBinding& binding) { return json_of(binding); }

DraftBinding draft_binding_from_json(const Json& object, const std::string& where) {
  return read_fields<DraftBinding>(object, where, ErrorKind::kModel);
}

std::optional<DraftBinding> read_binding(const std::filesystem::path& draft_directory) {
  const fs::path file = draft_directory / "specdec.json";
  if (!fs::exists(fs::symlink_status(file))) return std::nullopt;
  return draft_binding_from_json(read_json(file, ErrorKind::kModel), file.string());
}

BindingCheck check_binding(const std::filesystem::path& target, const std::filesystem::path& draft) {
  const auto binding = read_binding(draft);
  if (!binding) {
    refuse_exchanged(target, draft);
    require_same_vocabulary(target, draft);
    return {};
  }
  const Fingerprint found = fingerprint_model(target);
  if (found == binding->target) return {BindingState::kBound, ""};
  return {BindingState::kStale, draft.string() +
                                    " was made for another target: " + differing_tiers(binding->target, found) +
                                    " differ (made for " + binding->target.id.substr(0, 12) + ", " + target.string() +
                                    " is " + found.id.substr(0, 12) + ")"};
}

}  // namespace specdec
