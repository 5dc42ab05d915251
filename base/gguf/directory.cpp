// Model directories that hold a GGUF file.
#include "base/gguf/model_files.h"
#include "base/json.h"

namespace specdec::gguf {

std::filesystem::path file_in(const std::filesystem::path& directory) {
  std::error_code ec;
  if (fs::exists(directory / "model.gguf", ec)) return directory / "model.gguf";
  fs::path found;
  for (const auto& entry : fs::directory_iterator(directory, ec)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model-00001-of-") && name.ends_with(".gguf") && (found.empty() || entry.path() < found))
      found = entry.path();
  }
  return found;
}

void require_config_of(const GgufFile& file, const std::filesystem::path& directory) {
  const fs::path path = directory / "config.json";
  const Json config = read_json(path, ErrorKind::kModel);
  const Json made = config.is_object() ? config.value("quantization_config", Json()) : Json();
  const std::string header = made.is_object() && made.contains("header") && made["header"].is_string()
                                 ? made["header"].get<std::string>()
                                 : "";
  if (header != file.header_digest())
    throw Error(ErrorKind::kModel, path.string() + " was not made from " + file.files().front()->path().string() +
                                       ", whose header has other bytes: give the .gguf file itself");
}

}  // namespace specdec::gguf
