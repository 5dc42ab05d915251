#!/usr/bin/env python3
"""Renders chat templates with transformers and writes tests/text/golden/chat_templates.json.

make_goldens.py FOLDER OUT renders the templates of FOLDER (*.jinja) instead and writes to the file OUT.

Made with transformers 5.23.0, jinja2 3.1.6, Python 3.11. The build does not run it; run it by hand when a template or a
conversation is added:

    SPECDEC_SHARED=../shared python tests/text/make_goldens.py

Today's date in an output is replaced by {{TODAY}}, and an error is stored as {"error": message}.
"""

import datetime
import json
import os
import pathlib
import sys

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

here = pathlib.Path(__file__).resolve().parent
shared = pathlib.Path(os.environ.get("SPECDEC_SHARED", here.parents[2] / "shared"))

CONVERSATIONS = {
    "user": [("user", "Hello!")],
    "system": [("system", "  You are terse. "), ("user", 'What is 1 < 2 & "3"?')],
    "turns": [("user", "Hi"), ("assistant", " Hello.\nHow are you? "), ("user", "Fine — 谢谢 🙂\n")],
    "system_turns": [("system", "Be kind."), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
    "think": [
        ("user", "2+2?"),
        ("assistant", "<think>\nadd\n</think>\n\n4"),
        ("user", "and 3+3?"),
        ("assistant", "<think>x</think>6"),
    ],
    "two_users": [("user", "one"), ("user", "two")],
    "empty": [("user", "")],
}

# Conversations with tools: (messages as transformers takes them, tools). Only for templates that use tool_calls.
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Says "how" it is',
        "parameters": {
            "type": "object",
            "properties": {
                "zone": {"type": "string", "description": "Where"},
                "at": {"type": "integer", "description": "When"},
            },
            "required": ["zone", "at"],
        },
    },
}


def call(name, arguments, id="c1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOL_CONVERSATIONS = {
    "offered": ([{"role": "user", "content": "Hi"}], [WEATHER]),
    "called": (
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Rain?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [call("weather", {"zone": 'é "x"', "at": 1, "b": {"z": 0, "a": [1.5, None]}})],
            },
        ],
        [WEATHER],
    ),
    "answered": (
        [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": "Let me see.", "tool_calls": [call("weather", {"zone": "a", "at": 2})]},
            {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": '{"rain": true}'},
            {"role": "assistant", "content": "Yes."},
        ],
        [WEATHER],
    ),
    "two_calls": (
        [
            {"role": "user", "content": "Rain?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [call("weather", {"zone": "a"}), call("weather", {"zone": "b"}, "c2")],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "tool", "tool_call_id": "c2", "content": "2"},
            {"role": "assistant", "content": "Both."},
        ],
        None,
    ),
}

# Templates written for these tests, to cover the features of transformers that the Hub's files do not use.
WRITTEN = {
    "generation_tags": "{% for m in messages %}{%- if m.role == 'assistant' -%}\n  {% generation %}\n{{ m.content }}{% endgeneration -%}\n  {% else %}[{{ m.content }}]{% endif %}\n{% endfor %}",
    "python_methods": "{% for m in messages %}{{ m['content'].strip().upper() }}|{{ m.content.split(' ')[-1] }}|{{ m.content.startswith('a') }}|{{ m.content.replace('l', 'L').title() }}|{{ m.get('name', 'none') }}|{{ m.get('x') }}|{{ m.content.rstrip('!') ~ m.content.lstrip() }}|{{ m.content.find('o') }}|{{ m.content.count('l') }}|{{ ', '.join(m.keys()) }}|{{ m.content.removeprefix('He') }}|{{ m.content.removesuffix('!') }}|{{ m.content.rsplit(' ', 1) | last }}|{{ m.content.partition(' ')[2] }}\n{% endfor %}",
    "items": "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{% for k in messages[0] %}{{ k }}{% endfor %}{{ messages | length }}{{ messages[0].keys() | list }}",
    "tojson": "{{ messages | tojson }}\n{{ messages | tojson(indent=2) }}\n{{ {'b': 1.0, 'a': [none, true, 1e20, 0.00001, 1.5e-7, -3, \"<&'>\"], '/': {}, 'e': []} | tojson }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}{{ 'é😀' | tojson(ensure_ascii=true) }}",
    "blocks": "  {% if true %}\n    a\n  {%- else %}\n  {% endif %}\n{# comment #}\n  {{ bos_token }}{{- ' x ' -}}   {{ eos_token }}\n{% set x = namespace(n=0, s='') %}{% for m in messages %}{% set x.n = x.n + 1 %}{% set x.s = x.s + m.role[0] %}{% if loop.last %}{% break %}{% endif %}{% if loop.first %}{% continue %}{% endif %}{{ loop.index }}{{ loop.previtem.role }}\n{% endfor %}{{ x.n }}{{ x.s }}\n",
    "raise": "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported: \"x\"\nsecond line') }}{% endif %}ok",
    "undefined": "{{ nothing }}|{{ messages[0].nothing }}|{{ tools }}|{{ documents is none }}|{{ nothing is defined }}|{{ tools is not none }}|{% if nothing %}x{% endif %}{% for i in nothing %}y{% endfor %}{{ none }}{{ true }}{{ 1.0 }}{{ 1e3 }}{{ [1, 'a', none] }}{{ add_generation_prompt }}",
    "nested_undefined": "{{ messages[0].a.b }}",
    "filters": "{{ messages | map(attribute='content') | join(' + ') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ (messages | last).content | trim | capitalize }}{{ messages[::-1][0].content }}{{ messages[1:] | length }}{{ 'a,b' .split(',') | first }}{{ '%s is %d' | format('x', 3) }}{{ 7 // 2 }}{{ 7 % 3 }}{{ 2 ** 3 }}{{ 'x' * 3 }}{{ range(3) | list }}{{ messages is iterable }}{{ messages[0] is mapping }}{{ messages[0].content is string }}{{ 'e' in messages[0].content }}{{ dict(a=1).a }}{{ messages[0].content | replace('H', 'J') }}{{ '  a\n b' | indent(2) }}{{ 'abc'[1:] }}{{ 3.7 | int }}{{ '5' | int + 1 }}{{ [3, 1, 2] | sort | string }}",
    "macro": "{% macro turn(m, sep='\\n') %}<{{ m.role }}>{{ m.content }}{{ sep }}{% endmacro %}{% for m in messages %}{{ turn(m) }}{{ turn(m, sep=';') }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    "date": "{{ strftime_now('%Y-%m-%d') }}",
    "loop_filter": "{% for m in messages if m.role != 'system' %}{{ loop.index0 }}{{ loop.length }}{{ m.content }}{% else %}none{% endfor %}{% set a, b = 'x', 'y' %}{{ a ~ b }}{% set block %}  in {{ a }}  {% endset %}{{ block | trim }}{% filter upper %}f{% endfilter %}",
}


# Templates written for these tests, which format calls in the ways of four model families.
CALLING = {
    "calls_in_tags": "{% if tools %}{{- '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}{{- '<tools>' }}{% for tool in tools %}{{- '\n' ~ tool | tojson }}{% endfor %}{{- '\n</tools>\nAnswer with <tool_call>\n{\"name\": …, \"arguments\": …}\n</tool_call><|im_end|>\n' }}{% endif %}{% set ns = namespace(last=messages | length - 1) %}{% for message in messages[::-1] %}{% set at = messages | length - 1 - loop.index0 %}{% if message.role == 'user' and ns.last == messages | length - 1 %}{% set ns.last = at %}{% endif %}{% endfor %}{% for message in messages %}{% if message.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{% endif %}{% elif not (loop.first and message.role == 'system' and tools) %}{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}{% if message.tool_calls %}{% for call in message.tool_calls %}{% if call.function %}{% set call = call.function %}{% endif %}{{- '\n<tool_call>\n{\"name\": \"' + call.name + '\", \"arguments\": ' }}{% if call.arguments is string %}{{- call.arguments }}{% else %}{{- call.arguments | tojson }}{% endif %}{{- '}\n</tool_call>' }}{% endfor %}{% endif %}{{- '<|im_end|>\n' }}{% endif %}{% endfor %}{{ ns.last }}{% if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
    "calls_as_elements": "{% macro more(fields, known) %}{% if fields is mapping %}{% for key in fields if key not in known %}{% set value = fields[key] | tojson if fields[key] is mapping or (fields[key] is sequence and fields[key] is not string) else fields[key] | string %}{{- '\n<' ~ key ~ '>' ~ value ~ '</' ~ key ~ '>' }}{% endfor %}{% endif %}{% endmacro %}{% for tool in tools or [] %}{% set tool = tool.function %}{{- '<function>\n<name>' ~ tool.name ~ '</name>\n<description>' ~ (tool.description | trim) ~ '</description>' }}{% for name, fields in tool.parameters.properties | items %}{{- '\n<parameter>\n<name>' ~ name ~ '</name>' }}{{- more(fields, ['name', 'description']) }}{{- '\n</parameter>' }}{% endfor %}{{- more(tool.parameters, ['type', 'properties']) }}{{- '\n</function>\n' }}{% endfor %}{% for message in messages %}{{- '[' ~ message.role ~ ']' }}{% if message.role == 'assistant' and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}{% if message.content is string and message.content | trim | length > 0 %}{{- '\n' + message.content | trim + '\n' }}{% endif %}{% for call in message.tool_calls %}{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}{% for name, value in call.function.arguments | items %}{{- '<parameter=' + name + '>\n' }}{% set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}{{- value }}{{- '\n</parameter>\n' }}{% endfor %}{{- '</function>\n</tool_call>' }}{% endfor %}{% elif message.role == 'tool' %}{% if loop.previtem and loop.previtem.role != 'tool' %}{{- '{' }}{% endif %}{{- message.content }}{% if not loop.last and loop.nextitem.role != 'tool' %}{{- '}' }}{% elif loop.last %}{{- '}.' }}{% endif %}{% else %}{{- message.content }}{% endif %}{{- '\n' }}{% endfor %}",
    "calls_as_json": "{{- bos_token }}{% if not tools is defined %}{% set tools = none %}{% endif %}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + strftime_now('%Y-%m-%d') + '\n\n' + system + '<|eot_id|>' }}{% if tools is not none %}{% set first = messages[0]['content'] | trim %}{% set messages = messages[1:] %}{{- '<|start_header_id|>user<|end_header_id|>\n\nRespond in the format {\"name\": function name, \"parameters\": its arguments}.\n\n' }}{% for t in tools %}{{- t | tojson(indent=4) }}{{- '\n\n' }}{% endfor %}{{- first + '<|eot_id|>' }}{% endif %}{% for message in messages %}{% if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% elif 'tool_calls' in message %}{% if message.tool_calls | length != 1 %}{{- raise_exception('This model only supports single tool-calls at once!') }}{% endif %}{% set call = message.tool_calls[0].function %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"' + call.name | trim + '\", \"parameters\": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}{% else %}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{{- {'output': message.content} | tojson }}{{- '<|eot_id|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "calls_in_a_list": "{{- bos_token }}{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{% for message in messages %}{% if message['role'] == 'user' %}{% if tools is not none and message == users[-1] %}{{- '[AVAILABLE_TOOLS] [' }}{% for tool in tools %}{{- '{\"type\": \"function\", \"function\": {' }}{% for key, val in tool.function.items() if key != 'return' %}{% if val is string %}{{- '\"' + key + '\": \"' + val + '\"' }}{% else %}{{- '\"' + key + '\": ' + val | tojson }}{% endif %}{% if not loop.last %}{{- ', ' }}{% endif %}{% endfor %}{{- '}}' }}{{- ', ' if not loop.last else ']' }}{% endfor %}{{- '[/AVAILABLE_TOOLS]' }}{% endif %}{{- '[INST]' + message['content'] + '[/INST]' }}{% elif message.tool_calls is defined %}{{- '[TOOL_CALLS] [' }}{% for call in message.tool_calls %}{% set out = call.function | tojson %}{{- out[:-1] }}{% if not call.id is defined or call.id | length < 2 %}{{- raise_exception('ids of two letters') }}{% endif %}{{- ', \"id\": \"' + call.id[-9:] + '\"}' }}{{- ', ' if not loop.last else ']' + eos_token }}{% endfor %}{% elif message['role'] == 'assistant' %}{{- message['content'] + eos_token }}{% elif message['role'] == 'tool' %}{{- '[TOOL_RESULTS] {\"content\": ' + message.content | string + ', ' }}{{- '\"call_id\": \"' + message.tool_call_id[-9:] + '\"}[/TOOL_RESULTS]' }}{% else %}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}{% endif %}{% endfor %}",
}


def sources():
    """Yields (name, template, special tokens, whether the template was written for these tests)."""
    for folder in sorted((shared / "data/tokenizers").rglob("*")):
        if not folder.is_dir():
            continue
        config_file = folder / "tokenizer_config.json"
        config = json.loads(config_file.read_text()) if config_file.exists() else {}
        template = config.get("chat_template")
        if (folder / "chat_template.json").exists():
            template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
        if (folder / "chat_template.jinja").exists():
            template = (folder / "chat_template.jinja").read_text()
        if template is None:
            continue
        tokens = {}
        for key, value in config.items():
            if key.endswith("_token") and isinstance(value, (str, dict)):
                tokens[key] = value if isinstance(value, str) else value["content"]
        special = folder / "special_tokens_map.json"
        if special.exists():
            for key, value in json.loads(special.read_text()).items():
                if key.endswith("_token"):
                    tokens.setdefault(key, value if isinstance(value, str) else value["content"])
        yield str(folder.relative_to(shared / "data/tokenizers")), template, tokens, False
    for name, template in (WRITTEN | CALLING).items():
        yield name, template, {"bos_token": "<s>", "eos_token": "</s>"}, True


def templates_in(folder):
    """Yields what sources() yields, for the templates of a folder."""
    for file in sorted(pathlib.Path(folder).glob("*.jinja")):
        yield file.stem, file.read_text(), {"bos_token": "<s>", "eos_token": "</s>"}, True


def rendered(chat, tools, template, prompt, tokens):
    text = render_jinja_template([chat], tools=tools, chat_template=template, add_generation_prompt=prompt, **tokens)[
        0
    ][0]
    return text.replace(datetime.date.today().isoformat(), "{{TODAY}}")


def with_text_arguments(message):
    """Returns the message as the OpenAI API has it: the arguments of calls are JSON text, and the content of a message
    with calls is null if it is empty."""
    if "tool_calls" not in message:
        return message
    as_text = [
        c | {"function": c["function"] | {"arguments": json.dumps(c["function"]["arguments"], ensure_ascii=False)}}
        for c in message["tool_calls"]
    ]
    return message | {"tool_calls": as_text, "content": message["content"] or None}


def main():
    folder, file = sys.argv[1:] or (None, here / "golden/chat_templates.json")
    templates = list(templates_in(folder) if folder else sources())
    cases = []
    for name, template, tokens, _ in templates:
        for conversation, messages in CONVERSATIONS.items():
            for prompt in (False, True):
                chat = [{"role": r, "content": c} for r, c in messages]
                case = {"template": name, "conversation": conversation, "add_generation_prompt": prompt}
                try:
                    case["text"] = rendered(chat, None, template, prompt, tokens)
                except Exception as error:
                    case["error"] = str(error)
                cases.append(case)
    tool_cases = []
    for name, template, tokens, _ in templates:
        if name in WRITTEN or "tool_calls" not in template:
            continue
        for conversation, (chat, tools) in TOOL_CONVERSATIONS.items():
            for prompt in (False, True):
                case = {"template": name, "conversation": conversation, "add_generation_prompt": prompt}
                try:
                    case["text"] = rendered(chat, tools, template, prompt, tokens)
                except Exception as error:
                    case["error"] = str(error)
                calls = [c["function"]["name"] for m in chat for c in m.get("tool_calls", [])]
                if calls and case.get("text", "").count(calls[0]) < len(calls):
                    # The template expects arguments as text; with objects it omits the calls or fails.
                    try:
                        as_text = [with_text_arguments(m) for m in chat]
                        case["with_text_arguments"] = rendered(as_text, tools, template, prompt, tokens)
                    except Exception:
                        pass
                tool_cases.append(case)
    out = {
        "transformers": transformers.__version__,
        "conversations": {k: [{"role": r, "content": c} for r, c in v] for k, v in CONVERSATIONS.items()},
        "written": {name: template for name, template, _, written in templates if written},
        "cases": cases,
        # The messages are stored as JSON text, because the order of keys matters.
        "tool_conversations": {
            k: {
                "messages": [
                    {n: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for n, v in m.items()}
                    for m in chat
                ],
                "tools": json.dumps(tools) if tools else "",
            }
            for k, (chat, tools) in TOOL_CONVERSATIONS.items()
        },
        "tool_cases": tool_cases,
    }
    pathlib.Path(file).write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
    print(len(cases), "cases,", len(tool_cases), "with tools")


main()
