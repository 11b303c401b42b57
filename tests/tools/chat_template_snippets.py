"""Small templates for make_chat_template_goldens.py: one feature each. What jinja2 makes of them, errors included, is
the expectation, so that a snippet only has to be interesting, not right. Complex numbers, bytes and `self`, which Octavo
does not have, are left out."""

# Rendered with the variables below.
VARIABLES = {
    "n": 7, "neg": -3, "zero": 0, "x": 2.5, "big": 1e16, "tiny": 0.00001, "t": True, "f": False, "nothing": None,
    "word": "Hello", "text": "The quick brown fox\njumps over\n\nthe lazy dog", "empty": "", "spaces": "  padded\t\n",
    "unicode": "Straße Ünï 日本語 🦊", "quote": "it's \"quoted\"", "html": "<b>\"A\" & 'B'</b>",
    "list": [3, 1, 2], "words": ["banana", "Apple", "cherry", "apple"], "nested": [[1, 2], [3, [4]]], "none_list": [],
    "mixed": [1, "a", None, True, 2.0, [1], {"k": "v"}], "dict": {"b": 1, "a": 2, "C": 3, "items": "key named items"},
    "people": [{"name": "Ann", "age": 31, "city": {"name": "Bern"}}, {"name": "bob", "age": 25, "city": {"name": "Ulm"}},
               {"name": "Cem", "age": 31, "city": {"name": "bern"}}, {"name": "Dee", "age": 40}],
    "schema": {"type": "object", "properties": {"a": {"type": "string", "default": "é\u2028<\n\u0001"}}, "required": ["a"], "n": [], "m": {}},
    "huge": 18446744073709551615,
}

PRINTING = """
n x big tiny t f nothing word list nested mixed dict none_list empty undefined_name neg huge
1.0 100.0 1e15 1e17 123456789.125 0.1+0.2 1/3 -0.0 1e-4 12345678901234567890.0 1e300*1e10 2**0.5
'a' "b" 'it\\'s' [quote] [unicode] ['\\n\\t\\\\'] ['\\x00\\x7f\\u200b\\xa0'] {} [] () (1,) (1,2) {'a':1,2:'b',none:true}
[undefined_name] range(3) range(1,10,3) dict.items() dict.keys() dict.values() namespace(a=1,b='x') [1.5,true,none]
""".split("\n")

EXPRESSIONS = r"""
1 + 2
1 + 2 * 3
(1 + 2) * 3
7 / 2
6 / 2
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 % 2
-7.5 // 2
7.5 // -0.5
2 ** 10
2 ** -1
-2 ** 2
2 ** 3 ** 2
+n
-n
--n
- x
not t
not n == 7
n + x
t + 1
t + t
word + ' ' + 'there'
'ab' * 3
3 * 'ab'
'ab' * -1
[1, 2] + [3]
[0] * 3
(1, 2) + (3,)
(1, 2) * 2
'a' 'b' "c"
word ~ n ~ x ~ nothing ~ undefined_name ~ list
n ~ 1 + 2
1 ~ 2 * 3
'%s is %d and %.2f' % (word, n, x)
'%s' % word
'%s' % list
'%05d|%-5d|%+d|%x|%X|%o|%#x' % (42, 42, 42, 255, 255, 8, 255)
'%5s|%-5s|%.2s' % ('ab', 'ab', 'abcdef')
'%(a)s-%(b)s' % {'a': 1, 'b': 'two'}
'%e %g %G %r %%' % (12345.678, 0.00001, 1e20, 'q')
'%*d' % (5, 3)
'%c%c' % (65, 'b')
'100%' % ()
'%s %s' % ('one',)
'%d' % 'x'
'%s' % (1, 2)
'%z' % 1
'%05.1f|%+.3e|% d' % (3.14159, 1234.5, 5)
'{} {}'.format(1, 'a')
'{1} {0} {name}'.format('x', 'y', name='z')
'{0[a]} {1.real}'.format({'a': 5}, 3)
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:05d}|{:,}|{:x}|{:#b}|{:+}'.format(42, 1234567, 255, 5, 3)
'{:.2f}|{:8.3f}|{:e}|{:%}|{:.1%}'.format(3.14159, 2.5, 12345.0, 0.25, 0.333)
'{!r} {!s}'.format('a', 'b')
'{{}} {}'.format(1)
'{:{}}'.format('a', 4)
'{} {0}'.format(1)
'{}'.format()
'{a}'.format()
'{'.format()
1 < 2
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2
1 == 1.0
1 == true
'1' == 1
'a' < 'b'
'Z' < 'a'
[1, 2] < [1, 3]
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
none == none
none == undefined_name
undefined_name == other_undefined
nothing is none
1 < 'a'
none < 1
'a' in 'abc'
'' in 'abc'
1 in [1, 2]
1 in 'abc'
'b' in dict
'items' in dict
4 not in list
1 in none
1 in 5
'x' in undefined_name
2 in range(0, 10, 2)
3 in range(0, 10, 2)
t and n
f and n
f or word
empty or none_list or 'last'
t and f or t
not t or t
n if t else x
n if f else x
n if f
(n if f) is undefined
1 if f else 2 if f else 3
word[0]
word[-1]
word[10]
word[1:3]
word[::-1]
word[::2]
word[-3:]
word[:-1]
word[5:1]
word[1:100]
unicode[7:]
unicode[::-1]
unicode[0]
unicode[-1]
list[0]
list[-1]
list[5]
list[1:]
list[::-1]
list[-2:]
list[10:]
list[:2:-1]
list[::0]
list['a']
list[1.0]
list[true]
nested[1][1][0]
nested.1.0
(1, 2, 3)[1:]
range(10)[2:8:2]
range(10)[-1]
range(10)[::-1]|list
dict['a']
dict.a
dict.missing
dict['missing']
dict.items
dict['items']
dict.get('a')
dict.get('z')
dict.get('z', 9)
dict.missing.deeper
dict['missing']['deeper']
undefined_name.attribute
undefined_name['item']
undefined_name[0]
undefined_name()
undefined_name + 1
'a' + undefined_name
undefined_name[1:]
-undefined_name
undefined_name < 1
undefined_name|length
undefined_name|list
undefined_name|int
undefined_name|upper
nothing.attribute
nothing.attribute.deeper
nothing[0]
nothing[1:]
nothing()
n.attribute
n[0]
n()
word()
word.missing
word.missing()
people[0].name
people[0]['city'].name
people[3].city.name
people.0.age
dict.items()|list
dict.keys()|list
dict.values()|list
dict.items()[0]
dict|length
dict|list
dict[1:2]
dict[[1]]
{[1]: 2}
{'a': 1, 'a': 2}
{1: 'a', 1.0: 'b', true: 'c'}
dict.pop('a')
dict.update({'z': 1})
list.append(4)
list.append
list.pop()
list.sort()
word.__class__
word.__class__.__mro__
dict.__class__
[].__class__.__base__
dict._private
'%s' % undefined_name
'a' + 1
1 + 'a'
'a' - 'b'
'a' * 'b'
[1] + (1,)
1 / 0
1 // 0
1 % 0
1.0 / 0
0 ** -1
1_000 + 0x1F + 0b101 + 0o17
1e3 + 1.5e-3
1.real
[1, 2,]
{'a': 1,}
(1, 2,)
[]
()
{}
(1)
(1,)
1, 2
'a', 'b'
'\u00e9\x41\101\t|\'|\"|\\|\q|\é|\日'
'line\
continued'
"new
line"
[1, 2, 3]|first
list|sort|join(',')
word.upper().lower().title()
'a,b,c'.split(',')
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
' a  b c '.split()
' a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1)
'aXbX'.split('X')
'aaa'.rsplit('aa')
''.split()
''.split(',')
'a'.split('')
'abc'.split(maxsplit=1)
'a\nb\r\nc\n'.splitlines()
'a\nb'.splitlines(true)
'  x '.strip() + '|'
'xxaxx'.strip('x')
'xyaxy'.lstrip('xy')
'xyaxy'.rstrip('yx')
'\u00a0\u3000a'.strip()
'abc'.startswith('ab')
'abc'.startswith(('x', 'a'))
'abc'.endswith('bc', 1)
'abc'.startswith('b', 1)
'abc'.startswith(1)
'aXbXc'.replace('X', '-')
'aXbXc'.replace('X', '-', 1)
'abc'.replace('', '-')
'abc'.find('c')
'abc'.find('z')
'abcabc'.rfind('b')
'abc'.index('z')
'äbc'.find('c')
'banana'.count('a')
'banana'.count('ana')
'abc'.count('')
'-'.join(['a', 'b'])
'-'.join([1, 2])
'-'.join('abc')
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'abc'.removeprefix('a').removesuffix('c')
'hello world'.title()
"they're bill's".title()
'hELLO wORLD'.capitalize()
'Hello'.swapcase()
'straße'.upper()
'ŉ ﬁ'.upper()
'ﬁx ßa'.title()
'ǆ'.title()
'ΑΣ ΣΑΣ. Σ'.lower()
'İ'.lower()
'ẞ'.lower()
'ß'.casefold()
'123'.isdigit()
'²'.isdigit()
'½'.isnumeric()
'12a'.isdigit()
''.isdigit()
'abc'.isalpha()
'日本'.isalpha()
'a1'.isalnum()
' \t'.isspace()
'abc'.islower()
'ABC1'.isupper()
'Hello World'.istitle()
'a_1'.isidentifier()
'é'.isascii()
'42'.zfill(5)
'-42'.zfill(5)
'ab'.center(7, '*')
'abc'.center(8, '*')
'ab'.ljust(5, '.') + 'ab'.rjust(5)
'a\tb'.expandtabs(4)
[1, 2, 1].count(1)
[1, 2, 1].index(2)
[1].index(5)
(1, 2).index(2)
word.upper(1)
word.split(1)
word.lower
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([['a', 1], ['b', 2]])
range(3)|list
range(1, 4)|list
range(5, 0, -2)|list
range(0)|list
range(1, 1, 0)
range(100001)
range(10 ** 9)
range('a')
namespace(a=1).a
namespace(a=1)['a']
namespace({'a': 1}).a
namespace().missing
namespace(items=3).items
'a' in namespace(a=1)
cycler('a', 'b').next()
raise_exception('my message')
raise_exception('a' ~ 1)
raise_exception()
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y %H:%M:%S %% %A %j %f|%z|%Z|')
strftime_now('')
strftime_now()
lipsum is defined
loop
caller
caller is undefined
range
9223372036854775807
-9223372036854775807 - 1
huge|tojson
huge is integer
huge is number
huge == huge
big|int
1e400
-1e400
1e400 - 1e400
'nan'|float
n is sameas 7
word is sameas word
t is sameas true
1 is sameas true
""".strip("\n").replace("\\\ncontinued", "\\\x00continued").replace("new\nline", "new\x00line").split("\n")
EXPRESSIONS = [line.replace("\x00", "\n") for line in EXPRESSIONS]

FILTERS = r"""
neg|abs
x|abs
word|abs
list|batch(2)|list
list|batch(2, 0)|list
list|slice(2)|list
range(7)|slice(3, 'x')|list
'hELLO wORLD'|capitalize
'ab'|center(6) ~ '|'
undefined_name|default('d')
undefined_name|d
nothing|default('d')
nothing|default('d', true)
empty|default('d', boolean=true)
dict.missing|default('x')
dict|dictsort
dict|dictsort(true)
dict|dictsort(by='value')
dict|dictsort(false, 'value', true)
dict|dictsort(by='other')
html|escape
html|e
html|e|e
html|forceescape
(html|e) + '<'
'<' + ('<b>'|safe)
('<b>'|safe) ~ '<'
('<b>'|safe) * 2
('<%s>'|safe) % '<x>'
('<b>'|safe)|upper
('a&b'|e)|replace('&', '<')
('<a>'|safe).replace('a', '<')
('<b>'|safe).join(['<', '>'|safe])
['<b>'|safe]
('<b>'|safe) is escaped
('<b>'|safe) == '<b>'
('<{}>'|safe).format('<')
list|first
none_list|first
none_list|first is undefined
'abc'|first
'abc'|last
list|last
dict|last
none_list|last
list|map('string')|last
'3.5'|float
'abc'|float
'abc'|float(1.5)
'1_0.5'|float
' 1e3 '|float
'inf'|float
n|float
'%s-%s'|format('a', 1)
'%(a)s'|format(a=5)
people|groupby('age')
people|groupby('age')|map(attribute='0')|list
people|groupby('city.name', default='?')|map('first')|join(',')
people[:3]|groupby('city.name')|map(attribute=0)|list
text|indent
text|indent(2)
text|indent(2, true)
text|indent(2, true, true)
text|indent('> ')
text|indent(width=1, blank=true)
'a\r\nb\x0bc'|indent(2)
empty|indent(first=true) ~ '|'
n|indent
'42'|int
'42.9'|int
'abc'|int
'abc'|int(5)
'ff'|int(0, 16)
'0x1f'|int(0, 16)
'0b11'|int(0, 0)
'-7'|int
' 7 '|int
'1_000'|int
x|int
-x|int
t|int
nothing|int(3)
list|int
list|join
list|join(', ')
people|join(', ', attribute='name')
'abc'|join('-')
[1, none, undefined_name, true]|join('|')
nothing|join
5|join
dict|join
dict|items|list
undefined_name|items|list
list|items|list
list|length
word|count
unicode|length
n|length
nothing|length
people|map('length')|list
people|selectattr('age')|length
dict|list
word|list
unicode|list
n|list
'ABC'|lower
n|lower
people|map(attribute='name')|list
people|map(attribute='city.name')|list
people|map(attribute='city.name', default='none')|list
people|map(attribute='missing')|list
people|map('attr', 'name')|list
people|map(attribute='age', other=1)|list
words|map('upper')|join(' ')
words|map('replace', 'a', 'o')|list
words|map('nofilter')|list
words|map|list
undefined_name|map('upper')|list
nothing|map('upper')|list
[[1, 2], [3]]|map('sum')|list
['a b', 'c']|map('title')|list
[1, 2.5]|map('string')|list
[none, 1]|map('default', 'x', true)|list
list|max
list|min
words|max
words|min
words|min(case_sensitive=true)
people|max(attribute='age')
none_list|max
[1, 'a']|max
words|reject('equalto', 'apple')|list
list|reject('odd')|list
list|reject|list
mixed|reject('string')|list
people|rejectattr('city')|map(attribute='name')|list
people|rejectattr('age', 'gt', 30)|map(attribute='name')|list
'aaaa'|replace('a', 'b', 2)
n|replace(7, 8)
'abc'|replace('', '-')
'abc'|reverse
list|reverse|list
list|reverse is iterable
range(3)|reverse|list
dict|reverse|list
5|reverse
2.5|round
3.5|round
-2.5|round
2.675|round(2)
42.55|round(1, 'floor')
42.51|round(1, 'ceil')
5|round
15|round(-1)
25|round(-1)
1234.567|round(-2)
2.5|round(method='other')
'a'|round
1e300|round(2)
word|safe
list|select('odd')|list
list|select('greaterthan', 1)|list
mixed|select|list
mixed|select('string')|list
list|select('nosuchtest')|list
list|select('divisibleby', 3)|list
list|select('in', [1, 2])|list
people|selectattr('city')|map(attribute='name')|list
people|selectattr('age', 'equalto', 31)|map(attribute='name')|join(',')
people|selectattr('name', 'in', ['Ann', 'Cem'])|list|length
people|selectattr('city.name', 'defined')|map(attribute='name')|list
people|selectattr('city', 'undefined')|map(attribute='name')|list
people|selectattr|list
none_list|selectattr('a')|list
(list|select('gt', 5)) is defined
'yes' if none_list|select else 'no'
'yes' if none_list|select|list else 'no'
(list|select)[0]
(list|select)|length
(list|select)|first
list|sort
list|sort(true)
list|sort(reverse=true)
words|sort
words|sort(case_sensitive=true)
words|sort(true, true)
people|sort(attribute='age')|map(attribute='name')|list
people|sort(attribute='age,name', reverse=true)|map(attribute='name')|list
people|sort(attribute='city.name')|length
mixed|sort
[[2, 1], [1, 2]]|sort
[1.5, 1, true]|sort
n|string ~ 1
list|string
nothing|string
list|sum
[1.5, 2]|sum
people|sum(attribute='age')
people|sum('age', 100)
['a', 'b']|sum
none_list|sum
[[1], [2]]|sum(start=[])
'hello wORLD foo-bar (baz) [qux] <z> it\'s'|title
n|title
dict|tojson
schema|tojson
schema|tojson(indent=2)
schema|tojson(indent=0)
schema|tojson(2)
schema|tojson(ensure_ascii=true)
schema|tojson(true, 1)
schema|tojson(separators=(',', ':'))
schema|tojson(indent=1, separators=(', ', ' = '))
schema|tojson(indent='\t')
dict|tojson(sort_keys=true)
schema|tojson(indent=-1)
unicode|tojson
unicode|tojson(ensure_ascii=true)
html|tojson
quote|tojson
'\x7f\x1f\u2028/'|tojson
'\x7f\x1f\u2028/'|tojson(ensure_ascii=true)
mixed|tojson
(1, 2)|tojson
none|tojson
undefined_name|tojson
[undefined_name]|tojson
(list|map('string'))|tojson
namespace(a=1)|tojson
{1: 2, true: 3, none: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
{'b': 1, 2: 3}|tojson(sort_keys=true)
[1.0, 1e20, 1e-7, 1e400, -1e400]|tojson
('<b>'|safe)|tojson
none_list|tojson(indent=2)
dict.items()|tojson
spaces|trim ~ '|'
'xxaxx'|trim('x')
n|trim
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(9, true)
'foo bar baz qux'|truncate(11)
'foo bar baz qux'|truncate(11, false, '...', 0)
'foo bar baz qux'|truncate(2)
unicode|truncate(8, true, '…', 0)
words|unique|list
words|unique(case_sensitive=true)|list
[1, 1.0, true, 2]|unique|list
people|unique(attribute='age')|map(attribute='name')|list
[[1], [1]]|unique|list
'abc'|upper
unicode|upper
text|wordcount
"it's a word_1 日本 x-y"|wordcount
n|nofilter
word|upper('x')
word|default
word|replace('a')
word|trim(1)
dict|attr('items')
dict|attr('a')
people[0]|attr('name') is undefined
word|attr('upper')
list|join(separator='x')
(word|upper)[0]
word|upper.lower()
-x|abs
1 + 2|string
(1 + 2)|string + '!'
words|join|length
words|map('length')|sum
""".strip("\n").split("\n")

TESTS = r"""
n is odd
n is even
2 is even
2.0 is even
9 is divisibleby 3
9 is divisibleby(4)
n is defined
undefined_name is defined
undefined_name is not defined
undefined_name is undefined
dict.missing is defined
nothing is none
nothing is not none
undefined_name is none
t is boolean
n is boolean
f is false
n is false
0 is false
t is true
1 is true
n is integer
t is integer
x is integer
x is float
n is float
n is number
t is number
word is number
word is string
n is string
('a'|safe) is string
dict is mapping
list is mapping
list is sequence
word is sequence
dict is sequence
n is sequence
dict.items() is sequence
range(3) is sequence
(list|select) is sequence
undefined_name is sequence
list is iterable
word is iterable
n is iterable
undefined_name is iterable
(list|select) is iterable
range is callable
word.upper is callable
word is callable
'abc' is lower
'Abc' is lower
'ABC' is upper
'A1' is upper
'1' is upper
n is eq 7
n is == 7
n is equalto 8
n is ne 7
n is gt 6
n is ge 7
n is lt 7
n is le(7)
n is greaterthan 3
n is lessthan 3
n is in [7, 8]
n is not in [7, 8]
'e' is in word
'upper' is filter
'nofilter' is filter
'odd' is test
'notest' is test
n is sameas n
html is escaped
n is notest
n is divisibleby
n is divisibleby 0
'a' is odd
undefined_name is odd
n is defined and x is defined
n is defined or undefined_name.a
not n is defined
n is not defined or t
n is odd is even
word is string and word|length > 3
n is gt 3 and n is lt 10
(n if word is string else x)
n is eq 3 + 4
n is eq n
list is eq [3, 1, 2]
""".strip("\n").split("\n")

# Whole templates.
TEMPLATES = [
    # White space control.
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n  {% if t %}  \n  b\n  {% endif %}\nc", "  {{ n }}  \n  {{ n }}\n",
    "a {%- if t %} b {%- endif %} c", "a {% if t -%} b {% endif -%} c", "a\n\n  {{- n -}}  \n\n b", "{{ n }}\n\n", "\n{{ n }}\n",
    "x {%+ if t %} y {%+ endif %} z", "  {%+ if t %}\n  y\n  {%+ endif %}\nz", "{% if t +%}\nx{% endif +%}\ny",
    "a{# comment #}b\n{# comment #}\nc\n  {# c #}  \nd", "a {#- comment -#} b", "a\n  {#+ comment +#}\n b", "{# {{ n }} {% if %} #}x",
    "{#- a -#}\n{#--#}\nb", "{##}x{#-#}y", "{% raw %}{{ n }}{% endraw %}", "a\n{% raw %}\n {{ n }}\n{% endraw %}\nb", "a {%- raw -%} {{ n }} {%- endraw -%} b",
    "  {% raw %} x {% endraw %}  \ny", "{% raw %}{% if %}{% endraw %}", "{%raw%}a{%endraw%}", "\t{% set a = 1 %}\t\n{{ a }}",
    "line\r\nnext\r{{ n }}\r\n", "{{ 'a\r\nb' }}", "a\u00a0{%- if t %}\u3000b{% endif %}", "\u00a0{% if t %}x{% endif %}\n\u3000{% if t %}y{% endif %}",
    "{% if t %}\n\n{% endif %}\n\nx", "{{ n -}}\n  \n{{ n }}", "{%- for i in list -%}\n {{ i }}\n{%- endfor -%}\n", "x\n  {%- set a = 1 -%}  \n y",
    "{% if t %}a{% endif %}  \n  {% if t %}b{% endif %}", "{%\n  if t\n%}a{%\nendif %}\nb", "{{\nn\n}}", "{{'}}'}} {{ '{{' }} {{ '%}' }}", "{ {n} } {{ {'a': {'b': 1}}['a']['b'] }}",
    "a{%if t%}b{%endif%}c", "{% if t: %}colon{% endif %}", "{%- if t %}\n    a\n{%- endif %}\n", "  \n{%- if t %} a{% endif %}", "{% set x = 1 %}\n\n{% set y = 2 %}\n{{ x }}{{ y }}\n",
    "a\n{%- if t -%}\nb\n{%- endif -%}\nc\n", "x{{- '' -}} y", "{{- n }}", " {{- n }}{{ n -}} ", "tail {{ n }} \n\n\n", "{% for i in [1] %}\n{{ i }}\n{% endfor %}\n",
    # if
    "{% if f %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if f %}a{% elif f %}b{% else %}c{% endif %}", "{% if undefined_name %}a{% else %}b{% endif %}",
    "{% if not none_list and not empty and not zero and not nothing and not {} %}all false{% endif %}", "{% if 'False' and 0.1 and [0] and (0,) %}all true{% endif %}",
    "{% if f %}{{ undefined_name.a }}{% endif %}ok", "{% if f %}{{ n|nofilter }}{% endif %}ok", "{% if t %}{{ n|nofilter }}{% endif %}", "{% if f %}{% for i in list %}{{ i|nofilter }}{% endfor %}{% endif %}ok",
    "{{ (n|nofilter) if f else 'ok' }}", "{% if n is notest %}{% endif %}", "{% if 1, 2 %}tuple{% endif %}",
    # for
    "{% for i in list %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}", "{% for i in none_list %}x{% else %}empty{% endfor %}",
    "{% for i in list %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }};{% endfor %}",
    "{% for i in list %}{{ loop.previtem }}<{{ i }}<{{ loop.nextitem }} {% endfor %}", "{% for i in list %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for i in list %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in [1,1,2,2,1] %}{{ loop.changed(i) }} {% endfor %}", "{% for i in list %}{{ loop }}{% endfor %}", "{% for i in list %}{{ loop.missing }}{{ loop.cycle() }}{% endfor %}",
    "{% for i in range(6) if i is odd %}{{ i }}:{{ loop.index }}:{{ loop.length }} {% endfor %}", "{% for i in range(6) if i > 9 %}x{% else %}none{% endfor %}",
    "{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in dict|dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for k in dict %}{{ k }};{% endfor %}", "{% for p in people %}{% for k, v in p.items() if k != 'city' %}{{ loop.index }}{{ k }}={{ v }} {% endfor %}{{ loop.index }}|{% endfor %}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}", "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for (a, b) in ['xy', 'zw'] %}{{ b }}{{ a }}{% endfor %}",
    "{% for c in unicode %}[{{ c }}]{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for i in nothing %}{% endfor %}", "{% for i in undefined_name %}x{% else %}undefined is empty{% endfor %}",
    "{% for i in [1,2,3,4] %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in [1,2,3,4] %}{% if i == 3 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1] %}{% break %}{% else %}else after break{% endfor %}", "{% for i in [1, 2] %}{% continue %}{% else %}else after continue{% endfor %}", "{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}", "{% for i in [1,2] %}{% for j in [1,2] %}{% break %}{% endfor %}{{ i }}{% endfor %}", "{% break %}", "{% if t %}{% continue %}{% endif %}", "{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for i in [1,2] %}{% filter upper %}a{% break %}{% endfilter %}{% endfor %}done", "{% for i in list|sort if i > 1 %}{{ i }}{{ loop.first }}{% endfor %}", "{% for i in list %}{% for j in list %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "{% for i in list %}{% set outer = loop %}{% for j in [1] %}{{ outer.index }}{% endfor %}{% endfor %}",
    "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}", "{% for item in nested recursive %}{% if item is iterable %}[{{ loop(item) }}]{% else %}{{ item }}{% endif %}{{ loop.depth }}{{ loop.depth0 }}{% if not loop.last %},{% endif %}{% endfor %}", "{% for i in [1] %}{{ loop(list) }}{% endfor %}",
    "{% for x in [{'c': [{'c': []}]}] recursive %}<{{ loop.index }}{{ loop(x.c) }}>{% else %}-{% endfor %}", "{% for x in [1,2,3] if x != 2 recursive %}{{ x }}{% endfor %}", "{% for i in list %}{% set loop = 1 %}{% endfor %}", "{% for loop in list %}{% endfor %}", "{% for i in (list|map('string')) %}{{ loop.length }}{{ i }}{{ loop.last }} {% endfor %}", "{% set g = list|map('string') %}{{ g|join }}|{{ g|join }}|{{ g|list }}", "{% for i in list %}{{ loop.length }}{% endfor %}{{ loop is defined }}",
    "{% set ns = namespace(go=true) %}{% for i in [1,2,3] if ns.go %}{{ i }}{% if i == 2 %}{% set ns.go = false %}{% endif %}{% endfor %}", "{% set ns = namespace(l=none) %}{% for i in [1,2] %}{% set ns.l = loop %}{% endfor %}{{ ns.l.index }}{{ ns.l.last }}", "{% for a in people %}{{ a.name if loop.first else a.name|lower }}{{ ', ' if not loop.last }}{% endfor %}", "{% for x in [[1,2],[3]] %}{% for y in x %}{{ y }}{{ loop.parent is defined }}{% endfor %}{% endfor %}",
    # set and scopes
    "{% set a = 1 %}{{ a }}{% set a = a + 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1, 2, 3] %}", "{% set (a, b) = (b, a) %}{{ a }}", "{% set a = 1 %}{% for i in [1, 2] %}{{ a }}{% set a = i * 10 %}{{ a }} {% endfor %}{{ a }}", "{% set n = n + 1 %}{{ n }}", "{% for i in [1] %}{% set n = n + 1 %}{{ n }}{% endfor %}{{ n }}", "{% if t %}{% set z = 5 %}{% endif %}{{ z }}", "{% if f %}{% set n = 5 %}{% endif %}{{ n }}", "{% if f %}{% set z = 5 %}{% endif %}{{ z is defined }}", "{% for i in [1,2] %}{% if i == 1 %}{% set z = i %}{% endif %}{{ z }}|{% endfor %}{{ z }}", "{% for i in [1,2] %}{% if i == 1 %}{% set n = 'one' %}{% endif %}{{ n }}|{% endfor %}", "{% for n in [1,2] %}{{ n }}{% endfor %}{{ n }}",
    "{% set ns = namespace(count=0) %}{% for i in list %}{% set ns.count = ns.count + i %}{% endfor %}{{ ns.count }}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}{{ ns }}", "{% set dict.a = 1 %}", "{% set nosuch.a = 1 %}", "{% set ns = namespace(a=[1]) %}{% set ns.a = ns.a + [2] %}{{ ns.a }}", "{% set list[0] = 1 %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% set a.b.c = 1 %}", "{% set ns = namespace(f=1) %}{% set ns.missing %}x{% endset %}{{ ns.missing }}",
    "{% set a %}block {{ n }}{% endset %}[{{ a }}]", "{% set a | upper | trim %}  block {{ n }} {% endset %}[{{ a }}]", "{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b is defined }}", "{% set a = 'x' %}{% set b %}{{ a }}{% set a = 'y' %}{{ a }}{% endset %}{{ b }}{{ a }}", "{% set a = (1, 2) %}{{ a }}", "{% set a = 1, %}{{ a }}", "{% set a = n if t else x %}{{ a }}", "{% set x.y = 1 %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with a = 1 %}{% with a = a + 1 %}{{ a }}{% endwith %}{{ a }}{% endwith %}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}", "{% with a, b = 1, 2 %}{% endwith %}", "{% with n = n + 1 %}{{ n }}{% endwith %}{{ n }}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}{{ later }}{% endmacro %}{{ m() }}{% set later = 2 %}{{ m() }}", "{% macro m() %}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}", "{% for i in list %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% set x = 'outer' %}{% for i in [1] %}{% set x = 'inner' %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}{{ x }}",
    "{{ late }}{% set late = 1 %}{{ late }}", "{% for i in [1,2] %}{{ q is defined }}{% set q = i %}{{ q }} {% endfor %}", "{% set a = b %}{% set b = a %}{{ a is defined }}{{ b is defined }}", "{% if t %}{% set tools = list %}{% endif %}{% for i in tools %}{{ i }}{% endfor %}", "{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}",
    # macros, call, filter
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=5) }} {{ m(b=1, a=0) }}", "{% macro m(a) %}[{{ a }}]{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a, b) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m(a=n, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m() }}", "{% macro m(a=b, b=1) %}{{ a }}|{{ b }}{% endmacro %}{{ m() }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, a) %}{% endmacro %}",
    "{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * (fact(n - 1)|int) }}{% endif %}{% endmacro %}{{ fact(10) }}", "{% macro m() %}  x  {% endmacro %}[{{ m() }}]{{ m() is string }}{{ m()|length }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}body {{ n }}{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=5) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}{% if caller %}has{% else %}none{% endif %}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m(caller) %}{{ caller() }}{% endmacro %}", "{% macro m(caller=none) %}{% if caller %}{{ caller() }}{% endif %}.{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}", "{% call n %}{% endcall %}", "{% call undefined_name() %}x{% endcall %}",
    "{% macro a() %}{{ caller() }}{% endmacro %}{% macro b() %}{% call a() %}{{ caller() }}!{% endcall %}{% endmacro %}{% call b() %}deep{% endcall %}", "{% macro m(x, y='d') %}{% endmacro %}{{ m }}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% macro m(items) %}{% for i in items %}{{ i }}{{ loop.index }}{% endfor %}{% endmacro %}{{ m(list) }}{{ m('ab') }}", "{% macro m(*args) %}{% endmacro %}", "{% macro outer() %}{% macro inner(x) %}<{{ x }}>{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer() }}{{ inner is defined }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}{{ m(*[1], **{}) }}", "{{ dict(**{'a': 1}) }}{{ '{}{}'.format(*[1, 2]) }}", "{{ range(*[1, 4])|list }}", "{{ dict(a=1, **{'a': 2}) }}", "{{ dict(a=1, a=2) }}", "{{ range(stop=1) }}", "{% macro m() %}{% set ns.v = 1 %}{% endmacro %}{% set ns = namespace(v=0) %}{{ m() }}{{ ns.v }}", "{% if t %}{% macro m() %}in if{% endmacro %}{% endif %}{{ m() }}", "{% macro m() -%}\n  x\n{%- endmacro %}[{{ m() }}]", "{% macro even(n) %}{{ 'even' if n == 0 else odd(n - 1) }}{% endmacro %}{% macro odd(n) %}{{ 'odd' if n == 0 else even(n - 1) }}{% endmacro %}{{ even(5) }}",
    "{% filter upper %}a{{ word }}{% endfilter %}", "{% filter upper|replace('A', 'x') %}aba{% endfilter %}", "{% filter indent(2, first=true) %}a\nb{% endfilter %}", "{% filter nofilter %}{% endfilter %}", "{% filter trim %}{% set q = 1 %} {{ q }} {% endfilter %}{{ q is defined }}", "{% filter length %}abc{% endfilter %}",
    "{% generation %}a {{ n }}{% endgeneration %}b", "{% for i in list %}{% generation %}{{ i }}{{ loop.index }}{% set z = 1 %}{% endgeneration %}{{ z is defined }}{% endfor %}", "a\n{% generation %}\n  x\n{% endgeneration %}\nb", "{% print n %}{% print n, word %}",
    "{% set c = cycler('a', 'b', 'c') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.current }}", "{% set j = joiner('; ') %}{% for i in list %}{{ j() }}{{ i }}{% endfor %}{{ joiner()() }}|", "{{ cycler() }}",
    "{% set f = word.upper %}{{ f() }}", "{% set m = dict.get %}{{ m('a') }}{{ m('zz', 'no') }}", "{{ [word.upper, word.lower][1]() }}", "{% set d = {'f': range} %}{{ d.f(3)|list }}", "{% set d = dict %}{{ d.a }}", "{{ ((n)) }}{{ [[[]]] }}{{ {'a': [1, {'b': ()}]} }}",
    "{{ 'x' if messages is not defined }}|{{ messages is undefined }}", "{{ n }}{{ raise_exception('stop here') }}", "{% if messages is not defined %}{{ raise_exception('No messages: ' ~ n) }}{% endif %}", "{% set range = 5 %}{{ range }}", "{{ true }}{{ True }}{{ none }}{{ None }}{{ false }}{{ False }}", "{% set not_a_keyword = 1 %}{{ not_a_keyword }}", "{{ in_ }}{{ android }}{{ orbit }}{{ notx }}", "{{ class }}{{ if_ }}", "{{ dict.class }}{{ dict.if }}{{ {'if': 1}.if }}{{ {'in': 2}.in }}",
    # What is wrong, or not supported by either.
    "{{", "{% if %}", "{{ }}", "{% %}", "{{ n", "{% if t %}", "{% endif %}", "{% else %}", "{% for %}{% endfor %}", "{% for i list %}{% endfor %}", "{{ n }", "{{ (n }}", "{{ n) }}", "{{ [1, 2 }}", "{{ {'a' 1} }}", "{{ 'abc }}", "{# open", "{% raw %}", "{{ 1 2 }}", "{{ n n }}", "{{ a..b }}", "{{ a. }}", "{{ a.'b' }}", "{{ a[ }}", "{{ a[] }}", "{{ n | }}", "{{ n is }}", "{{ n ! }}", "{{ n & 1 }}", "{{ n @ 1 }}", "{{ $ }}", "{{ n ? 1 : 2 }}", "{{ n := 1 }}", "{{ lambda x: x }}", "{{ f(a=1, 2) }}", "{{ f(**a, b) }}", "{% unknown %}", "{% set %}", "{% set a %}", "{% set a = %}", "{% macro %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% call %}{% endcall %}", "{% if t %}{% endfor %}", "{% for i in list %}{% endif %}{% endfor %}", "{% endraw %}", "{{ '\\x4' }}", "{{ '\\ud83d' }}" if False else "{{ '\\u12' }}", "{{ 0x }}", "{{ 012 }}", "{{ 1__0 }}", "{{ 1. }}", "{{ .5 }}", "{{ not }}", "{{ n not 1 }}", "{{ n in }}", "{{ and }}", "{{ if }}", "{% if t %}a{% else %}b{% else %}c{% endif %}", "{% if t %}a{% else %}b{% elif t %}c{% endif %}", "{%- -%}", "{{ (1, 2 }}", "{{ ] }}", "{% endfor %}", "{% filter %}{% endfilter %}", "{{ n|upper(1)(2) }}", "{{ 'a'.b.c() }}", "{% for i in list recursive if i %}{% endfor %}", "{{ f(,) }}", "{{ f(1,) }}", "{{ [,] }}", "{{ {,} }}", "{{ (,) }}", "{{ () }}", "{{ 1 if }}", "{{ 1 if t else }}", "{{ x if y is defined else z }}", "{{ - }}", "{{ ~ }}", "{{ 1 ~ }}", "{{ a b }}", "{% set a b = 1 %}", "{% with a %}{% endwith %}", "{% break %}", "{% macro m() %}{% endmacro foo %}", "{{ {{ }}", "{% {% %}", "}}", "%}", "#}", "{ % if % }", "{{ n }} }}",
]
