#include "distill/teacher/open_teacher.h"

#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"
#include "distill/teacher/hidden_teacher.h"
#include "distill/teacher/label_teacher.h"

namespace specdec::distill {

namespace {

// Returns the first names of a list for a message: "a, b, c, …".
std::string first_names(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < 3; ++i) out += (i ? ", " : "") + names[i];
  return names.size() > 3 ? out + ", …" : out;
}

std::vector<const TokenRow*> all_rows(const PreparedRows& train, const PreparedRows& held_out) {
  std::vector<const TokenRow*> rows;
  for (const PreparedRows* split : {&train, &held_out})
    for (const TokenRow& row : split->rows) rows.push_back(&row);
  return rows;
}

std::shared_ptr<const model::Decoder> load_target_head(const TeacherInput& in) {
  const fs::path target = in.options.target;
  const model::DecoderConfig config = model::load_decoder_config(target);
  auto head = std::make_shared<model::Decoder>(
      model::load_head(target, in.device, model::resolve_dtype(in.options.device.dtype, config)));
  head->config.draft_vocab.clear();  // the teacher uses its whole vocabulary
  return head;
}

OpenedTeacher open_hidden(const TeacherInput& in, const std::vector<const TokenRow*>& rows,
                          const std::function<void(double)>& step) {
  const auto head = load_target_head(in);
  HiddenFiles files({in.spec.argument, head->config.hidden_size, norm_factors(*head), step}, rows);
  const auto normed = std::count_if(files.files().begin(), files.files().end(), [](const auto& f) { return f.normed; });
  log(LogLevel::kInfo, in.spec.argument + ": hidden states of " + std::to_string(files.files().size()) + " files, " +
                           std::to_string(normed) + " of them after the final norm");
  if (!files.unused().empty())
    log(LogLevel::kWarn, in.spec.argument + ": " + std::to_string(files.unused().size()) +
                             " files belong to no row of the data: " + first_names(files.unused()));
  std::string listed;
  for (const HiddenFile& f : files.files())
    listed += f.path.filename().string() + " " + std::to_string(f.tokens) + " " + std::to_string(f.states) + "\n";
  const Json record = {{"path", in.spec.argument}, {"files", files.files().size()}, {"digest", sha256_hex(listed)}};
  return {std::make_unique<HiddenSource>(head, std::move(files)), std::nullopt, record};
}

OpenedTeacher open_labels(const TeacherInput& in) {
  const auto labels = std::make_shared<const LabelReader>(
      in.spec.argument, LabelUse{in.data_digest, in.tokenizer_digest, in.target_id, in.options.temperature,
                                 in.options.data, in.options.target});
  const LabelIndex& index = labels->index();
  std::shared_ptr<const model::Decoder> head;
  if (index.kind == "hidden") {
    head = load_target_head(in);
    if (head->config.hidden_size != index.hidden_size)
      throw Error(ErrorKind::kData, in.spec.argument + ": hidden states of " + std::to_string(index.hidden_size) +
                                        " values, the target has " + std::to_string(head->config.hidden_size));
  }
  const Json record = {{"path", in.spec.argument},
                       {"kind", index.kind},
                       {"digest", sha256_file(fs::path(in.spec.argument) / "index.json")}};
  return {std::make_unique<LabelSource>(labels, head), index.target, record};
}

}  // namespace

OpenedTeacher open_teacher_files(const TeacherInput& input, const PreparedRows& train, const PreparedRows& held_out,
                                 const std::function<void(double)>& step) {
  if (input.spec.kind == TeacherSpec::Kind::kLabels) return open_labels(input);
  return open_hidden(input, all_rows(train, held_out), step);
}

int64_t drop_unanswered(const TeacherSource& source, const std::string& split, PreparedRows& rows) {
  std::vector<TokenRow> kept;
  std::vector<std::string> lost;
  for (TokenRow& row : rows.rows) {
    if (source.has(row)) {
      kept.push_back(std::move(row));
      continue;
    }
    rows.tokens -= static_cast<int64_t>(row.tokens.size());
    rows.loss_tokens -= learnt_positions(row);
    lost.push_back(row.id);
  }
  rows.rows = std::move(kept);
  if (!lost.empty())
    log(LogLevel::kWarn, std::to_string(lost.size()) + " " + split +
                             " rows have no answer of the teacher and are left "
                             "out: " +
                             first_names(lost));
  return static_cast<int64_t>(lost.size());
}

}  // namespace specdec::distill
