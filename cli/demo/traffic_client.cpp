#include "cli/demo/traffic_client.h"

#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace specdec::cli {

Json chat(data::OpenAiClient& client, const Json& request) {
  const data::HttpReply reply = client.post("/chat/completions", request);
  if (reply.status != 200) throw Error(ErrorKind::kNetwork, client.base_url() + ": " + data::describe(reply));
  const Json answer = parse_json(reply.body, client.base_url());
  if (!answer.contains("choices") || answer["choices"].empty())
    throw Error(ErrorKind::kNetwork, client.base_url() + ": an answer without choices");
  return answer;
}

data::OpenAiClient connect(const std::string& url) {
  data::ClientOptions options;
  options.url = url;
  return data::OpenAiClient(options);
}

TrafficFigures send_traffic(const std::string& url, uint64_t seed, int64_t first, int64_t count, DemoEdition edition) {
  const SystemClock clock;
  const double start = clock.seconds();
  TrafficFigures figures;
  data::OpenAiClient client = connect(url);
  for (int64_t i = first; i < first + count; ++i) {
    const DemoConversation c = demo_conversation(seed, i, edition);
    const Json answer = chat(client, {{"messages", {{{"role", "user"}, {"content", c.question}}}},
                                      {"temperature", 1.0},
                                      {"seed", i},
                                      {"max_tokens", 160},
                                      {"metadata", {{"domain", c.domain}}}});
    ++figures.answers;
    figures.tokens += answer.at("usage").at("completion_tokens").get<double>();
  }
  figures.seconds = clock.seconds() - start;
  return figures;
}

std::string ask(const std::string& url, const std::string& question, double temperature, int64_t max_tokens) {
  data::OpenAiClient client = connect(url);
  const Json answer = chat(client, {{"messages", {{{"role", "user"}, {"content", question}}}},
                                    {"temperature", temperature},
                                    {"max_tokens", max_tokens}});
  return answer.at("choices").at(0).at("message").at("content").get<std::string>();
}

}  // namespace specdec::cli
