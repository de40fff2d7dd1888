FROM labkit-standin/base:13
RUN apt-get install -qq python3 python3-venv && ln -s python3 /usr/bin/python
CMD ["python3"]
