#include "data/regenerate/row_regenerator.h"

#include <algorithm>
#include <set>

#include "base/progress.h"
#include "data/regenerate/answer_turns.h"
#include "data/select/split.h"

namespace specdec::data {

namespace {

bool is_refusal(long status) { return status == 400 || status == 413 || status == 422; }

}  // namespace

// The state of the row that is being rewritten.
struct RowRegenerator::Work {
  const TokenRow& recorded;
  std::vector<AnswerTurn> turns;  // answers of the recorded row
  size_t turn = 0;                // index of the answer that is written now
  Answer out;
  bool was_cut = false;  // the new answer reached its token limit
  std::set<std::string> openings = {};

  bool is_last() const { return turn + 1 == turns.size(); }
  const AnswerTurn& now() const { return turns[turn]; }

  // Ends the row before answer `turn`.
  void end(const std::string& reason) { (turn == 0 ? out.rejected : out.ended) = reason; }
  void append_recorded(int64_t begin, int64_t end) {
    out.tokens.insert(out.tokens.end(), recorded.tokens.begin() + begin, recorded.tokens.begin() + end);
    out.loss_mask.resize(out.tokens.size(), 0);
  }
};

Answer RowRegenerator::answer(OpenAiClient& client, const TokenRow& row) const {
  Work work{.recorded = row, .turns = answer_turns(row), .out = {.id = row.id}};
  if (tokeniser_)
    for (const AnswerTurn& turn : work.turns)
      work.openings.merge(call_openings(text_of(row.tokens, turn.begin, turn.end), turn.calls));
  work.append_recorded(0, work.turns.front().begin);
  while (ask(client, work) && !work.is_last() && go_on(work)) ++work.turn;
  Answer& out = work.out;
  if (!out.rejected.empty()) {
    out.tokens.clear();
    out.loss_mask.clear();
  }
  return std::move(out);
}

// Returns the maximum number of tokens of the new answer. Without --max-tokens, the row's last answer gets at most as
// many tokens as the recorded answer has. An earlier answer gets more, because the model must end it before the
// conversation can continue.
int64_t RowRegenerator::room(const Work& work) const {
  const int64_t recorded = work.now().end - work.now().begin;
  int64_t room = options_.max_tokens > 0 ? options_.max_tokens : work.is_last() ? recorded : 2 * recorded + 64;
  if (index_.max_length > 0) room = std::min(room, index_.max_length - static_cast<int64_t>(work.out.tokens.size()));
  return room;
}

// Requests one answer and appends it. Returns false if the row ends before this answer.
bool RowRegenerator::ask(OpenAiClient& client, Work& work) const {
  Answer& out = work.out;
  const int64_t max_tokens = room(work), last_prompt = out.prompt_tokens;
  if (max_tokens <= 0 || out.tokens.empty()) {
    work.end("no_room");
    return false;
  }
  const std::string where = client.base_url() + "/completions";
  AnswerProblem problem{static_cast<int64_t>(work.turn) + 1, 0, ""};
  HttpReply reply;
  try {
    reply = client.post("/completions", request_body(work, max_tokens));
    problem.status = reply.status;
    if (reply.status != 200) problem.message = describe(reply);
    if (reply.status == 401 || reply.status == 403 || reply.status == 404)
      throw Error(ErrorKind::kUsage, where + ": " + problem.message);
    if (is_refusal(reply.status)) {
      work.end("http_" + std::to_string(reply.status));
      out.problem = problem;
      return false;
    }
    if (reply.status != 200) throw Error(ErrorKind::kNetwork, where + ": " + problem.message);
    const Json body = parse_json(reply.body, where, ErrorKind::kNetwork);
    const Json& choices = json_array(body, "choices", 1 << 10, where, ErrorKind::kNetwork);
    if (choices.empty() || !choices[0].is_object())
      throw Error(ErrorKind::kNetwork, where + ": choices: expected a list with one object");
    append(choices[0], max_tokens, where + ": choices[0]", work);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kNetwork || stop_requested()) throw;
    if (problem.message.empty()) problem.message = e.what();
    throw NoAnswer(problem, e.what());
  }
  if (static_cast<int64_t>(out.tokens.size()) <= out.prompt_tokens) {
    out.prompt_tokens = last_prompt;
    work.end("empty_answer");
    return false;
  }
  ++out.turns;
  if (!work.now().calls.empty()) out.calls.push_back({out.prompt_tokens, work.now().calls});
  return true;
}

// Appends the recorded tokens between this answer and the next one. Returns false if the row must end after this
// answer.
bool RowRegenerator::go_on(Work& work) const {
  Answer& out = work.out;
  const auto end = [&](const char* reason) {
    ++work.turn;  // the row keeps this answer
    work.end(reason);
    return false;
  };
  const bool calls = !work.openings.empty() || !work.now().calls.empty();
  if (calls) {
    const auto size = static_cast<int64_t>(out.tokens.size());
    const bool same = tokeniser_ && makes_same_calls(work.openings, work.now().calls,
                                                     text_of(work.recorded.tokens, work.now().begin, work.now().end),
                                                     text_of(out.tokens, out.prompt_tokens, size));
    if (!same) {
      if (!work.now().calls.empty()) out.calls.pop_back();  // the new answer does not make the recorded calls
      return end("tool_calls");
    }
  }
  if (work.was_cut) {
    const int32_t closing = closing_token(work);
    if (closing < 0) return end("length");
    out.tokens.push_back(closing);  // the model did not write this token, so it is not learnt
    out.loss_mask.push_back(0);
  }
  work.append_recorded(work.now().end, work.turns[work.turn + 1].begin);
  return true;
}

Json RowRegenerator::request_body(const Work& work, int64_t max_tokens) const {
  const TokenRow& row = work.recorded;
  const SamplingOptions sampling = row.has_sampling ? row.sampling : SamplingOptions{};
  const std::string key = work.turn == 0 ? row.id : row.id + "/" + std::to_string(work.turn);
  Json body = {{"model", model_},
               {"prompt", options_.prompt_as_text ? Json(prompt_text(work.out.tokens)) : Json(work.out.tokens)},
               {"max_tokens", max_tokens},
               {"temperature", options_.temperature.value_or(sampling.temperature)},
               {"seed", (options_.seed ^ conversation_key(key)) >> 11},  // 53 bits: exact in every JSON reader
               {"return_token_ids", true}};
  // Omits parameters that have their default value, because strict endpoints refuse parameters that they do not know.
  if (sampling.top_p < 1) body["top_p"] = sampling.top_p;
  if (sampling.top_k > 0) body["top_k"] = sampling.top_k;
  if (sampling.min_p > 0) body["min_p"] = sampling.min_p;
  return body;
}

// Returns the prompt as text, without BOS because the endpoint adds it.
std::string RowRegenerator::prompt_text(std::vector<int32_t> prompt) const {
  if (!tokeniser_)
    throw Error(ErrorKind::kUsage, "prompts as text need --target-files: the tokenizer that made the token ids");
  const text::Tokenizer& t = tokeniser_->tokenizer();
  if (!prompt.empty() && prompt.front() == t.bos_id()) prompt.erase(prompt.begin());
  return t.decode(prompt, false);
}

std::string RowRegenerator::text_of(const std::vector<int32_t>& tokens, int64_t begin, int64_t end) const {
  return tokeniser_->tokenizer().decode({tokens.begin() + begin, tokens.begin() + end}, false);
}

// Returns the token that ends the recorded answer (its end-of-turn marker), -1 if there is none.
int32_t RowRegenerator::closing_token(const Work& work) const {
  if (work.now().end == work.now().begin) return -1;
  const int32_t last = work.recorded.tokens[static_cast<size_t>(work.now().end) - 1];
  // If the conversation continued after this answer, the answer is complete and its last token is the end-of-turn
  // marker.
  if (!tokeniser_) return work.is_last() ? -1 : last;
  const text::Tokenizer& t = tokeniser_->tokenizer();
  return t.decode({last}, true).empty() && !t.decode({last}, false).empty() ? last : -1;
}

// Appends the tokens of `choice`, cut to the max_length of the data, and sets prompt_tokens. Throws if the endpoint
// returned more token ids than max_tokens. An answer returned as text may have more tokens, because it is tokenised
// here.
void RowRegenerator::append(const Json& choice, int64_t max_tokens, const std::string& where, Work& work) const {
  Answer& out = work.out;
  out.prompt_tokens = static_cast<int64_t>(out.tokens.size());
  if (const auto ids = choice.find("token_ids"); ids != choice.end() && ids->is_array()) {
    if (static_cast<int64_t>(ids->size()) > max_tokens)
      throw Error(ErrorKind::kNetwork, where + ": token_ids: found " + std::to_string(ids->size()) +
                                           " ids, and max_tokens was " + std::to_string(max_tokens));
    for (const Json& id : *ids) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= index_.vocab_size)
        throw Error(ErrorKind::kNetwork, where + ": token_ids: found " + id.dump() + ", expected ids below " +
                                             std::to_string(index_.vocab_size));
      out.tokens.push_back(id.get<int32_t>());
    }
  } else {
    const std::string text = json_string(choice, "text", where, ErrorKind::kNetwork);
    if (!tokeniser_)
      throw Error(ErrorKind::kData, where +
                                        ": the endpoint returns no token_ids: give --target-files MODEL, whose "
                                        "tokenizer makes them of the text");
    append_text(text, work);
  }
  const auto reason = choice.find("finish_reason");
  work.was_cut = reason == choice.end() || *reason != "stop";
  out.loss_mask.resize(out.tokens.size(), 1);
  int32_t end = closing_token(work);
  if (end < 0 && tokeniser_ && work.is_last()) end = tokeniser_->tokenizer().eos_id();
  if (!work.was_cut && end >= 0 && out.tokens.back() != end) {
    out.tokens.push_back(end);
    out.loss_mask.push_back(1);
  }
  // An answer that ends with its end-of-turn marker was not cut, even if finish_reason is not "stop" (such as
  // "tool_calls").
  work.was_cut = work.was_cut && (end < 0 || out.tokens.back() != end);
  if (const auto most = static_cast<size_t>(index_.max_length); most > 0 && out.tokens.size() > most) {
    out.tokens.resize(most);
    out.loss_mask.resize(most);
    work.was_cut = true;
  }
}

// Appends the tokens of an answer that was returned as text. A token that spans the end of the prompt and the begin of
// the answer belongs to the answer.
void RowRegenerator::append_text(const std::string& text, Work& work) const {
  Answer& out = work.out;
  const text::Tokenizer& t = tokeniser_->tokenizer();
  const std::string prompt = prompt_text(out.tokens);
  const std::vector<int32_t> before = t.encode(prompt, false), whole = t.encode(prompt + text, false);
  const auto border = std::mismatch(before.begin(), before.end(), whole.begin(), whole.end());
  const auto straddling = static_cast<size_t>(before.end() - border.first);
  out.tokens.resize(out.tokens.size() - std::min(straddling, out.tokens.size() - 1));
  out.loss_mask.resize(out.tokens.size());
  out.prompt_tokens = static_cast<int64_t>(out.tokens.size());
  out.tokens.insert(out.tokens.end(), border.second, whole.end());
}

}  // namespace specdec::data
