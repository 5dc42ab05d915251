#include "distill/metrics/metrics.h"

#include <cmath>

#include "base/file.h"
#include "base/json.h"

namespace specdec::distill {

namespace {

// Keeps the complete lines of steps up to `step`; drops lines of later steps and an incomplete last line.
void drop_later_lines(const fs::path& file, int64_t step) {
  if (!fs::exists(file)) return;
  const std::string text = read_file(file, size_t{4} << 30);
  std::string kept;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string line = text.substr(begin, end - begin);
    const Json value = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (value.is_object() && value.contains("step") && value["step"].is_number_integer() &&
        value["step"].get<int64_t>() <= step)
      kept += line + "\n";
    begin = end + 1;
  }
  write_file_atomic(file, kept);
}

}  // namespace

Metrics::Metrics(const std::filesystem::path& run_directory, const Clock& clock, int64_t resume_step)
    : file_(run_directory / "metrics.jsonl"), clock_(clock), events_(run_directory, clock.unix_seconds(), resume_step) {
  drop_later_lines(file_, resume_step);
}

void Metrics::write(const std::string& kind, int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  Json line = {{"kind", kind}, {"step", step}, {"time", clock_.unix_seconds()}};
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : values) {
    line[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
    scalars.emplace_back(kind + "/" + name, value);
  }
  append_line(file_, line.dump());
  events_.scalars(static_cast<double>(clock_.unix_seconds()), step, scalars);
}

}  // namespace specdec::distill
