#include "cli/demo/service_prompts.h"

#include <stdexcept>

#include "base/error.h"
#include "base/file.h"
#include "base/philox.h"

namespace specdec::cli {

namespace {

const Json& pick(const Json& list, PhiloxStream& random) { return list.at(random.below(list.size())); }

void require(bool holds, const std::string& where) {
  if (!holds) throw std::invalid_argument(where);
}

// Throws if a field of a service is missing or empty. `answered`: each request has a right answer.
void require_service(const Json& service, bool answered) {
  (void)service.at("temperature").get<double>();
  (void)service.at("max_tokens").get<int64_t>();
  require(!service.at("requests").empty(), "requests");
  for (const Json& request : service.at("requests")) {
    require(!request.at("ask").empty(), "ask");
    for (const Json& text : request.at("ask")) (void)text.get<std::string>();
    if (answered) require(!request.at("call").get<std::string>().empty(), "call");
  }
  for (const Json& example : service.value("examples", Json::array()))
    for (const size_t i : {0, 1}) (void)example.at(i).get<std::string>();
}

// Replaces each {name} by a word of this name. A name that occurs again, also in another text, gets the same word.
class Filler {
 public:
  Filler(const std::map<std::string, std::vector<std::string>>& words, PhiloxStream& random)
      : words_(words), random_(random) {}

  std::string fill(const std::string& text) {
    std::string out;
    size_t begin = 0;
    for (size_t open = 0; (open = text.find('{', begin)) != std::string::npos;) {
      const size_t close = text.find('}', open);
      const auto words =
          close == std::string::npos ? words_.end() : words_.find(text.substr(open + 1, close - open - 1));
      if (words == words_.end()) {  // a brace of the text itself
        out += text.substr(begin, open + 1 - begin);
        begin = open + 1;
        continue;
      }
      const auto [chosen, is_new] = chosen_.try_emplace(words->first);
      if (is_new) chosen->second = words->second[random_.below(words->second.size())];
      out += text.substr(begin, open - begin) + chosen->second;
      begin = close + 1;
    }
    return out + text.substr(begin);
  }

 private:
  const std::map<std::string, std::vector<std::string>>& words_;
  PhiloxStream& random_;
  std::map<std::string, std::string> chosen_;
};

}  // namespace

ServicePrompts::ServicePrompts(const std::filesystem::path& file) {
  const Json prompts = read_json(file);
  try {
    services_ = prompts.at("services");
    words_ = prompts.at("words").get<std::map<std::string, std::vector<std::string>>>();
    for (const Json& service : services_) {
      domains_.push_back(service.at("domain").get<std::string>());
      require_service(service, domains_.size() == 1);
    }
    for (const auto& [name, words] : words_) require(!words.empty(), "words " + name);
  } catch (const Json::exception& e) {
    throw Error(ErrorKind::kData, file.string() + ": not a file of prompts: " + e.what());
  } catch (const std::invalid_argument& e) {
    throw Error(ErrorKind::kData, file.string() + ": not a file of prompts: nothing in " + e.what());
  }
  if (domains_.size() != 2) throw Error(ErrorKind::kData, file.string() + ": expected the requests of two services");
}

ServicePrompt ServicePrompts::at(uint64_t seed, int64_t index) const {
  PhiloxStream random(seed, static_cast<uint64_t>(index));
  const Json& service = services_.at(random.below(3) < 2 ? 0 : 1);
  const Json& request = pick(service.at("requests"), random);
  ServicePrompt prompt;
  prompt.domain = service.at("domain");
  prompt.temperature = service.at("temperature");
  prompt.max_tokens = service.at("max_tokens");
  prompt.messages = Json::array();
  const auto add = [&](const char* role, const Json& content) {
    prompt.messages.push_back({{"role", role}, {"content", content}});
  };
  if (service.contains("system")) add("system", service.at("system"));
  for (const Json& example : service.value("examples", Json::array())) {
    add("user", example.at(0));
    add("assistant", example.at(1));
  }
  Filler filler(words_, random);
  add("user", filler.fill(pick(request.at("ask"), random).get<std::string>()));
  if (request.contains("call")) prompt.answer = filler.fill(request.at("call").get<std::string>());
  return prompt;
}

}  // namespace specdec::cli
